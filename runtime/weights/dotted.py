"""Names with dots, as plans and tables of keys write them: `linear.num_key_heads` lies in a section `linear`."""


def put(tree: dict[str, object], name: str, value: object) -> None:
    """Sets it; a section that is not there yet is made."""
    section, _, key = name.rpartition(".")
    target = tree.setdefault(section, {}) if section else tree
    assert isinstance(target, dict)
    target[key] = value
