"""One tree over another."""

from firmtoken.schema.merge import merge
from firmtoken.schema.source import read_yaml
from firmtoken.schema.tree import MapNode, key_place, plain


def tree(text: str, file: str = "x.yaml") -> MapNode:
    node = read_yaml(text.encode(), file)
    assert isinstance(node, MapNode)
    return node


def merged(base: str, over: str) -> object:
    return plain(merge(tree(base), tree(over)))


def test_mappings_merge_in_depth() -> None:
    assert merged("a: {b: {c: 1, d: 2}, e: 3}", "a: {b: {c: 9}, f: 4}") == {
        "a": {"b": {"c": 9, "d": 2}, "e": 3, "f": 4}
    }


def test_lists_and_scalars_replace() -> None:
    assert merged("a: [1, 2]\nb: {c: 1}\nd: 1", "a: [3]\nb: 5\nd: {e: 1}") == {
        "a": [3],
        "b": 5,
        "d": {"e": 1},
    }


def test_null_removes_what_lies_below() -> None:
    assert merged("a: {b: 1, c: 2}", "a: {b: null}") == {"a": {"c": 2}}
    assert merged("a: {b: 1}", "a: null") == {}


def test_null_stays_where_nothing_lies_below() -> None:
    assert merged("a: 1", "b: null") == {"a": 1, "b": None}


def test_a_source_that_is_named_anew_replaces() -> None:
    base = "source: {hub: a/b, revision: x}"
    assert merged(base, "source: {path: /data}") == {"source": {"path": "/data"}}
    assert merged(base, "source: {hub: c/d}") == {"source": {"hub": "c/d"}}
    assert merged(base, "source: {revision: y}") == {"source": {"hub": "a/b", "revision": "y"}}


def test_every_value_keeps_its_place() -> None:
    root = merge(tree("a: {b: 1, c: 2}", "base.yaml"), tree("a:\n  b: 3", "over.yaml"))
    assert str(key_place(root, ("a", "b"))) == "over.yaml:2:3"
    assert str(key_place(root, ("a", "c"))) == "base.yaml:1:11"
    assert str(key_place(root, ("a",))) == "over.yaml:1:1"
