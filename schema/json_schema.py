"""The JSON Schema of a profile (draft 7), for editors: hover shows what the docstrings say."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from firmtoken.schema.assembly import EXTENDS, PARTS
from firmtoken.schema.outline import sections_in, spelling
from firmtoken.schema.profile import Profile
from firmtoken.schema.section import Section

Schema = dict[str, Any]  # JSON has no narrower type

DRAFT = "http://json-schema.org/draft-07/schema#"
DEFINITIONS = "#/definitions/"
PART_OF = "PartOf"
"""Prefix of a section that lies over another one, so nothing in it is required."""


def profile_json_schema() -> Schema:
    """Of a whole profile, with the definitions that `part_json_schema` refers to."""
    whole = Profile.model_json_schema(ref_template=f"{DEFINITIONS}{{model}}")
    definitions: Schema = whole.pop("$defs")
    definitions["Profile"] = whole
    for section in sections_below(Profile):
        describe(definitions[section.__name__], section)
    for part in PARTS:
        refer(definitions["Profile"]["properties"], part)
    definitions |= {f"{PART_OF}{name}": part_of(each) for name, each in definitions.items()}
    for name in ("Profile", *(part.capitalize() for part in PARTS)):
        definitions[f"{PART_OF}{name}"]["properties"][EXTENDS] = {
            "type": "string",
            "description": "A file whose fields these ones lie over: mappings merge, "
            "everything else replaces, `null` removes.",
        }
    top = whole_or_part("Profile", "")
    return {"$schema": DRAFT, "title": "FirmToken profile"} | top | {"definitions": definitions}


def part_json_schema(part: str) -> Schema:
    """Of a file that holds a `hardware` or a `model`; it lies beside the profile's schema."""
    name = part.capitalize()
    title = f"FirmToken {part}"
    return {"$schema": DRAFT, "title": title} | whole_or_part(name, "profile.schema.json")


def whole_or_part(name: str, file: str) -> Schema:
    """A section; or, if it extends another, some of its fields."""
    return {
        "type": "object",
        "if": {"required": [EXTENDS]},
        "then": {"$ref": f"{file}{DEFINITIONS}{PART_OF}{name}"},
        "else": {"$ref": f"{file}{DEFINITIONS}{name}"},
    }


def sections_below(section: type[Section]) -> Iterator[type[Section]]:
    yield section
    for field in section.model_fields.values():
        for below in sections_in(field.annotation):
            yield from sections_below(below)


def describe(schema: Schema, section: type[Section]) -> None:
    """Put each attribute's docstring beside its field."""
    texts = attribute_docstrings(section)
    for name, field in section.model_fields.items():
        properties = schema["properties"][spelling(name, field)]
        properties.pop("title", None)
        properties["description"] = texts[name]
    schema.pop("title", None)


def attribute_docstrings(section: type[Section]) -> dict[str, str]:
    """Read off the source, and here only: pydantic does it at import, which `ft plan` would pay."""
    body = ast.parse(textwrap.dedent(inspect.getsource(section))).body[0]
    assert isinstance(body, ast.ClassDef)  # the source of a class is one statement
    texts = {}
    for statement, after in zip(body.body, body.body[1:], strict=False):
        match statement, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                texts[name] = inspect.cleandoc(text)
    return texts


def refer(properties: Schema, part: str) -> None:
    """A part may be a path, or the mapping itself."""
    described = properties[part]["description"]
    properties[part] = {
        "description": described,
        "anyOf": [{"type": "string"}, whole_or_part(part.capitalize(), "")],
    }


def part_of(schema: Schema) -> Schema:
    """The same section with nothing required, `null` allowed, and so for the sections in it."""
    if "properties" not in schema:
        return schema
    loose = {key: loosened(each) for key, each in schema.items() if key != "required"}
    loose["properties"] = {name: nullable(each) for name, each in loose["properties"].items()}
    return loose


def nullable(schema: Schema) -> Schema:
    nothing = {"type": "null"}
    if nothing in schema.get("anyOf", []):
        return schema
    form = {key: each for key, each in schema.items() if key != "description"}
    return {"description": schema["description"], "anyOf": [form, nothing]}


def loosened(schema: Any) -> Any:  # any JSON value
    """`schema` with every reference turned to the loose twin of what it refers to."""
    if isinstance(schema, list):
        return [loosened(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: loose_name(each) if key == "$ref" else loosened(each) for key, each in schema.items()
    }


def loose_name(reference: str) -> str:
    name = reference.removeprefix(DEFINITIONS).removeprefix(PART_OF)
    return f"{DEFINITIONS}{PART_OF}{name}"
