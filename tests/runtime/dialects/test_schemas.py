"""Values written without quotes, and the JSON that a schema makes of them."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firmtoken.runtime.dialects.schemas import STRING, ToolSchemas, value_json

ANY = ["object", "array", "string", "number", "boolean", "null"]


def kinds(schema: Any, **root: Any) -> list[str]:
    """The types of parameter `x` that has this schema."""
    tools = ToolSchemas({"f": {"type": "object", "properties": {"x": schema}} | root})
    return sorted(tools.kinds("f", "x"))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, ["string"]),
        ({"type": "integer"}, ["number"]),
        ({"type": ["string", "null"]}, ["null", "string"]),
        ({"type": "string", "nullable": True}, ["null", "string"]),
        ({"enum": ["a", "b"]}, ["string"]),
        ({"enum": [1, None, True]}, ["boolean", "null", "number"]),
        ({"const": {}}, ["object"]),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, ["null", "number"]),
        ({"oneOf": [{"type": "array"}, {"enum": ["x"]}]}, ["array", "string"]),
        ({"anyOf": [{"type": "integer"}, {}]}, ["string"]),
        ({"allOf": [{"description": "d"}, {"type": "array"}]}, ["array"]),
        ({"properties": {}}, ["object"]),
        ({"items": {}}, ["array"]),
        ({"description": "of no type"}, ["string"]),
        ({}, ["string"]),
        (True, ["string"]),
        ({"$ref": "#/$defs/n"}, ["number"]),
        ({"$ref": "#/$defs/a~1b"}, ["boolean"]),
        ({"$ref": "#/$defs/missing"}, ["string"]),
        ({"$ref": "elsewhere.json#/n"}, ["string"]),
        ({"$ref": "#/$defs/loop"}, ["string"]),
    ],
)
def test_a_schema_says_which_types_a_value_may_have(schema: object, expected: list[str]) -> None:
    defs = {
        "n": {"type": "number"},
        "a/b": {"type": "boolean"},
        "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]},
    }
    assert kinds(schema, **{"$defs": defs}) == expected


def test_what_the_schema_does_not_name_may_be_said_of_all_others() -> None:
    tools = ToolSchemas({"f": {"additionalProperties": {"type": "integer"}}, "g": {}})
    assert tools.kinds("f", "any") == {"number"}
    assert tools.kinds("g", "any") == tools.kinds("none", "any") == STRING


@pytest.mark.parametrize(
    ("text", "allowed", "expected"),
    [
        ("5", ["number"], "5"),
        (" 1.50\n", ["number"], "1.50"),
        ("true", ["boolean"], "true"),
        ("True", ["boolean", "string"], "true"),
        ("True", ["number"], '"True"'),
        ("None", ["null", "string"], "null"),
        ("NaN", ["number"], '"NaN"'),
        ("01", ["number"], '"01"'),
        ("1" * 5000, ["number"], f'"{"1" * 5000}"'),
        ("[" * 5000, ["array"], f'"{"[" * 5000}"'),
        ('"\\ud800"', ["array"], '"\\"\\\\ud800\\""'),
        ('{"a": 1}', ["object"], '{"a": 1}'),
        ('{"a": 1}', ["array"], '"{\\"a\\": 1}"'),
        ('"quoted"', ["string", "null"], '"\\"quoted\\""'),
    ],
)
def test_a_text_becomes_the_json_that_is_allowed_or_a_string(
    text: str, allowed: list[str], expected: str
) -> None:
    assert value_json(text, frozenset(allowed)) == expected


@given(text=st.text(st.characters(codec="utf-8")), allowed=st.sets(st.sampled_from(ANY)))
def test_every_text_becomes_json(text: str, allowed: set[str]) -> None:
    json.loads(value_json(text, frozenset(allowed)))


@given(
    schema=st.recursive(
        st.none() | st.booleans() | st.integers() | st.sampled_from([*ANY, "#/x"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "enum", "anyOf", "allOf", "$ref", "const", "properties", "nullable"]
                ),
                inner,
                max_size=3,
            )
        ),
    )
)
def test_no_schema_is_too_odd_to_be_read(schema: object) -> None:
    assert kinds(schema)


def test_a_schema_of_itself_many_times_over_is_read_at_once() -> None:
    """Followed anew from every branch, it would keep the server for hours."""
    again = {"anyOf": [{"$ref": "#/$defs/E"}] * 50}
    chain = {f"D{step}": {"anyOf": [{"$ref": f"#/$defs/D{step + 1}"}] * 50} for step in range(6)}
    named = {"$defs": {"E": again, **chain, "D6": {"type": "integer"}}}
    begun = time.monotonic()
    assert kinds({"$ref": "#/$defs/E"}, **named) == ["string"]
    assert kinds({"$ref": "#/$defs/D0"}, **named) == ["number"]
    assert time.monotonic() - begun < 5
