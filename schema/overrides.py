"""`--set field=value`: one value, as if it stood at that field in the profile."""

from pathlib import Path

from firmtoken.schema.diagnostic import (
    SET,
    Diagnostic,
    Fault,
    Place,
    ProfileError,
    diagnose,
    literal,
)
from firmtoken.schema.references import File
from firmtoken.schema.source import read_yaml
from firmtoken.schema.tree import Entry, MapNode, Node, Scalar

FREE_KEYS = "kernels"
"""Its keys may themselves contain a dot: `kernels.attention.decode`."""
TEXT_FIELDS = ("hardware.software.", "hardware.gpu.compute_capability")
"""A number written there is the text itself (`2.10` is no 2.1); in a file it needs quotes, which a shell takes away."""


def command_line() -> File:
    """What relative paths in `--set` are relative to: a file of that name in the working directory."""
    here = Path.cwd().resolve()
    return File(path=here / SET, shown=SET, folder=here)


def read_override(text: str, ordinal: int) -> MapNode | Diagnostic:
    """The tree that holds the one value of `field=value`."""
    place = Place(file=SET, line=ordinal, column=1)
    field, equals, value = text.partition("=")
    steps = split(field.strip())
    if not equals or not all(steps):
        fault = Fault(
            code="override",
            message=f"expected `field=value`, found `{literal(text)}`",
            hint="for example `--set serving.context=64k`",
        )
        return diagnose(fault, place, "")
    try:
        node = read_value(value.strip(), place)
    except ProfileError as error:
        first = error.diagnostics[0]
        fault = Fault(code=first.code, message=first.message, hint=first.hint)
        return diagnose(fault, place, field.strip())
    if is_number(node) and field.strip().startswith(TEXT_FIELDS):
        node = Scalar(place=place, value=value.strip())
    for step in reversed(steps):
        node = MapNode(place=place, entries=(Entry(key=step, place=place, value=node),))
    assert isinstance(node, MapNode)  # there is at least one step
    return node


def read_value(text: str, place: Place) -> Node:
    if not text:
        return Scalar(place=place, value=None)
    return moved(read_yaml(text.encode("utf-8", "surrogateescape"), SET), place)


def is_number(node: Node) -> bool:
    return (
        isinstance(node, Scalar)
        and isinstance(node.value, int | float)
        and not isinstance(node.value, bool)
    )


def moved(node: Node, place: Place) -> Node:
    """`node` with every place replaced: positions inside an argument help nobody."""
    match node:
        case Scalar():
            return Scalar(place=place, value=node.value)
        case MapNode():
            entries = (
                Entry(key=entry.key, place=place, value=moved(entry.value, place))
                for entry in node.entries
            )
            return MapNode(place=place, entries=tuple(entries))
        case _:
            return type(node)(place=place, items=tuple(moved(item, place) for item in node.items))


def split(field: str) -> list[str]:
    steps = field.split(".")
    if steps[0] != FREE_KEYS or len(steps) == 1:
        return steps
    tail = steps[1:]
    last = [tail.pop()] if len(tail) > 1 and tail[-1] == "avoid" else []
    return [FREE_KEYS, ".".join(tail), *last]
