"""What JSON types a tool's parameters may take, read from its JSON schema; and a written value as JSON text.

The families that write values without quotes leave it to the reader whether `5` is a number or a text. The rule:

- Where only a string is allowed, or nothing is said of the type (no schema, an unknown tool or parameter), the
  value is the text itself.
- Else a text that is JSON of an allowed type is that; `True`, `False` and `None`, as templates written for Python
  show past values, count as `true`, `false` and `null`.
- A text that is none of these is a string after all: nothing is lost, and the client's own check names it.
"""

from collections.abc import Mapping, Sequence

import msgspec

Kinds = frozenset[str]
"""JSON types: `object`, `array`, `string`, `number`, `boolean`, `null`. `integer` is `number` here."""
STRING: Kinds = frozenset({"string"})
MAX_DEPTH = 16
"""Of references and unions: a schema that refers to itself ends here."""
PYTHON = {"True": "true", "False": "false", "None": "null"}
NOT_JSON = (msgspec.DecodeError, UnicodeError, RecursionError)
"""What msgspec raises; the last one for brackets nested without end."""


class ToolSchemas:
    """The tools that one request names."""

    def __init__(self, parameters: Mapping[str, Mapping[str, object]]) -> None:
        """`parameters`: of each tool by name its JSON schema, empty where it has none."""
        self._parameters = parameters

    def kinds(self, tool: str, parameter: str) -> Kinds:
        """The types that a value of this parameter may have."""
        root = self._parameters.get(tool, {})
        properties = root.get("properties")
        named = properties.get(parameter) if isinstance(properties, Mapping) else None
        schema = root.get("additionalProperties") if named is None else named
        return _Reader(root).kinds(schema) or STRING


def is_json(text: str) -> bool:
    """True if `text` is one JSON value."""
    try:
        msgspec.json.decode(text)
    except NOT_JSON:
        return False
    return True


def quoted(text: str) -> str:
    """`text` as a JSON string."""
    return msgspec.json.encode(text).decode()


def value_json(text: str, kinds: Kinds) -> str:
    """JSON text of a value that was written as `text`."""
    bare = text.strip()
    bare = PYTHON.get(bare, bare)
    try:
        kind = _kind_of(msgspec.json.decode(bare))
    except NOT_JSON:
        return quoted(text)
    # A quoted text may be meant with its quotes: strings are written bare.
    return bare if kind in kinds - STRING else quoted(text)


class _Reader:
    """Reads types out of one tool's schema; follows each reference once, however many places make it."""

    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        self._referred: dict[str, Kinds | None] = {}

    def kinds(self, schema: object, depth: int = MAX_DEPTH) -> Kinds | None:
        """None where the schema says nothing of the type."""
        if not isinstance(schema, Mapping) or depth == 0:
            return None
        reference = schema.get("$ref")
        if isinstance(reference, str):
            return self._behind(reference, depth)
        kinds = self._own(schema, depth)
        return kinds | {"null"} if kinds and schema.get("nullable") is True else kinds

    def _behind(self, reference: str, depth: int) -> Kinds | None:
        if reference not in self._referred:
            # Met again on its own way, a reference says nothing: else unions of themselves double at each step.
            self._referred[reference] = None
            found = _referred(reference, self._root)
            self._referred[reference] = self.kinds(found, depth - 1)
        return self._referred[reference]

    def _own(self, schema: Mapping[str, object], depth: int) -> Kinds | None:
        kind = schema.get("type")
        if isinstance(kind, str):
            return _plain([kind])
        if isinstance(kind, list):
            return _plain(kind)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list):
            return frozenset(map(_kind_of, values))
        for union in ("anyOf", "oneOf"):
            branches = schema.get(union)
            if isinstance(branches, list):
                return _united([self.kinds(branch, depth - 1) for branch in branches])
        parts = schema.get("allOf")
        if isinstance(parts, list):
            said = (self.kinds(part, depth - 1) for part in parts)
            return next((kinds for kinds in said if kinds), None)
        for name, implied in (("properties", "object"), ("items", "array")):
            if name in schema:
                return frozenset({implied})
        return None


def _plain(kinds: Sequence[object]) -> Kinds:
    return frozenset("number" if kind == "integer" else str(kind) for kind in kinds)


def _united(branches: Sequence[Kinds | None]) -> Kinds | None:
    """A branch that allows anything leaves nothing said."""
    said = [kinds for kinds in branches if kinds is not None]
    return frozenset().union(*said) if len(said) == len(branches) else None


def _referred(reference: str, root: Mapping[str, object]) -> object:
    """What `#/$defs/Name` names; None for a reference to elsewhere."""
    steps = reference.split("/")
    found: object = root if steps[0] == "#" else None
    for step in steps[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
