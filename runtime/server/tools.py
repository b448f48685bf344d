"""The tools of a chat request: what the template is shown, and what a reader of calls must know of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any  # Any: a tool's schema is whatever its client wrote

from firmtoken.runtime.dialects.calls import MAX_NAME
from firmtoken.runtime.dialects.schemas import ToolSchemas
from firmtoken.runtime.server.errors import InvalidBody, UnsupportedParameter
from firmtoken.runtime.server.served_model import ServedModel
from firmtoken.schema.diagnostic import literal

UNREADABLE_IN_NAMES = frozenset('<>"')
"""With white space and control characters: the families write names between such marks, without an escape."""
CHOICES = (None, "auto", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Those that an answer may call."""

    definitions: tuple[Mapping[str, Any], ...]
    """As the client wrote them: key order is part of the prompt, and of the prefix that a next turn finds again."""
    schemas: ToolSchemas


def read_tools(
    definitions: Sequence[Mapping[str, Any]] | None,
    choice: str | Mapping[str, Any] | None,
    model: ServedModel,
) -> Tools | None:
    """The tools of a request; None if it has none or wants none called.

    Raises `UnsupportedParameter` for what cannot be done, `InvalidBody` for what is no tool.
    """
    if choice not in CHOICES:
        asked = choice if isinstance(choice, str) else "one named tool"
        raise UnsupportedParameter(
            f"`tool_choice`: `{literal(asked)}` cannot be enforced here, only `auto` and `none` are served",
            param="tool_choice",
        )
    parameters: dict[str, Mapping[str, Any]] = {}
    for index, definition in enumerate(definitions or ()):
        place = f"tools[{index}]"
        name, schema = _function(definition, place)
        if name in parameters:
            raise _invalid(f"{place}.function.name", f"`{literal(name)}` is there twice")
        parameters[name] = schema
    if not definitions or choice == "none":
        return None
    if not model.takes_tools:
        raise UnsupportedParameter(
            "`tools`: this model's chat template has no place for them", param="tools"
        )
    return Tools(definitions=tuple(definitions), schemas=ToolSchemas(parameters))


def _function(definition: Mapping[str, Any], place: str) -> tuple[str, Mapping[str, Any]]:
    """The name and the schema of one tool."""
    kind = definition.get("type", "function")
    if kind != "function":
        raise UnsupportedParameter(
            f"`{place}.type`: `{literal(kind)}` is not supported, only `function` is",
            param=f"{place}.type",
        )
    function = definition.get("function")
    if not isinstance(function, Mapping):
        raise _invalid(f"{place}.function", "expected an object with `name` and `parameters`")
    name, schema = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _is_readable(name):
        raise _invalid(
            f"{place}.function.name",
            f"expected 1 to {MAX_NAME} characters without white space, `<`, `>` and quotes",
        )
    if schema is not None and not isinstance(schema, Mapping):
        raise _invalid(f"{place}.function.parameters", "expected a JSON schema, an object")
    if function.get("strict"):
        raise UnsupportedParameter(
            f"`{place}.function.strict`: nothing here forces arguments to fit their schema, leave it out",
            param=f"{place}.function.strict",
        )
    return name, schema or {}


def _is_readable(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and not any(
        letter in UNREADABLE_IN_NAMES or letter.isspace() or not letter.isprintable()
        for letter in name
    )


def _invalid(place: str, message: str) -> InvalidBody:
    return InvalidBody(f"`{place}`: {message}", param=place, code="invalid_value")
