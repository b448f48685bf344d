"""A name with a dot lies in a section."""

from firmtoken.runtime.weights.dotted import put


def test_a_section_is_made_once_and_kept() -> None:
    tree: dict[str, object] = {}
    put(tree, "linear.num_key_heads", 16)
    put(tree, "linear.conv_kernel", 4)
    put(tree, "hidden_size", 2048)
    assert tree == {"linear": {"num_key_heads": 16, "conv_kernel": 4}, "hidden_size": 2048}
