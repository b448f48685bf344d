"""The JSON Schema for editors agrees with the loader."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ruamel.yaml import YAML

from firmtoken.schema.json_schema import part_json_schema, profile_json_schema
from firmtoken.schema.references import shipped_folder, shipped_names

Json = Any
SCHEMAS: dict[str, Callable[[], Json]] = {
    "profile": profile_json_schema,
    "hardware": lambda: part_json_schema("hardware"),
    "model": lambda: part_json_schema("model"),
}


def rendered(name: str) -> str:
    return json.dumps(SCHEMAS[name](), indent=1) + "\n"


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_shipped_file_is_what_the_code_says(name: str) -> None:
    """To renew it, delete the file and run this test twice."""
    path = shipped_folder() / f"{name}.schema.json"
    if not path.exists():
        path.write_text(rendered(name))
        pytest.fail(f"{path.name} was missing and is written now")
    assert path.read_text() == rendered(name)


class Validator:
    """The part of draft 7 that our schema uses; an unknown keyword is an error."""

    def __init__(self) -> None:
        self.root = profile_json_schema()

    def fits(self, schema: Json, value: Json) -> bool:
        return all(self.keyword(key, schema, value) for key in schema)

    def keyword(self, key: str, schema: Json, value: Json) -> bool:
        bound = schema[key]
        if key in ("$schema", "title", "description", "default", "definitions", "then", "else"):
            return True
        if key == "$ref":
            return self.fits(self.root["definitions"][bound.split("/")[-1]], value)
        if key == "if":
            return self.fits(schema["then" if self.fits(bound, value) else "else"], value)
        if key in ("anyOf", "oneOf"):
            fitting = sum(self.fits(each, value) for each in bound)
            return fitting == 1 if key == "oneOf" else fitting > 0
        if key == "enum":
            return value in bound
        if key == "const":
            return bool(value == bound)
        if key == "type":
            return TYPES[bound](value)
        if isinstance(value, dict):
            return self.object_keyword(key, schema, value)
        if isinstance(value, list):
            return self.list_keyword(key, bound, value)
        return SCALAR[key](value, bound) if key in SCALAR else key in OTHER

    def object_keyword(self, key: str, schema: Json, value: Json) -> bool:
        bound = schema[key]
        if key == "required":
            return all(name in value for name in bound)
        if key == "properties":
            return all(self.fits(bound[name], value[name]) for name in value if name in bound)
        if key == "patternProperties":
            return all(
                self.fits(each, value[name])
                for pattern, each in bound.items()
                for name in value
                if re.search(pattern, name)
            )
        if key == "propertyNames":
            return all(self.fits(bound, name) for name in value)
        if key == "additionalProperties":
            known = schema.get("properties", {})
            extra = [each for name, each in value.items() if name not in known]
            return not extra if bound is False else all(self.fits(bound, each) for each in extra)
        return key in SCALAR or key in OTHER

    def list_keyword(self, key: str, bound: Json, value: Json) -> bool:
        if key == "items":
            return all(self.fits(bound, item) for item in value)
        if key == "minItems":
            return bool(len(value) >= bound)
        return key in SCALAR or key in OTHER


def is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


TYPES: dict[str, Callable[[Json], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "null": lambda value: value is None,
    "number": is_number,
    "integer": lambda value: is_number(value) and value == int(value),
}
SCALAR: dict[str, Callable[[Json, Json], bool]] = {
    "minimum": lambda value, bound: not is_number(value) or value >= bound,
    "maximum": lambda value, bound: not is_number(value) or value <= bound,
    "exclusiveMinimum": lambda value, bound: not is_number(value) or value > bound,
    "exclusiveMaximum": lambda value, bound: not is_number(value) or value < bound,
    "minLength": lambda value, bound: not isinstance(value, str) or len(value) >= bound,
    "maxLength": lambda value, bound: not isinstance(value, str) or len(value) <= bound,
    "pattern": lambda value, bound: not isinstance(value, str) or bool(re.search(bound, value)),
}
OTHER = {
    "required", "properties", "patternProperties", "propertyNames", "additionalProperties",
    "items", "minItems",
}  # fmt: skip


def top_schema(name: str) -> Json:
    folder = name.rpartition("/")[0]
    return SCHEMAS[{"": "profile", "hardware": "hardware", "models": "model"}[folder]]()


def shipped_data(name: str) -> Json:
    return YAML(typ="safe", pure=True).load(shipped_folder() / f"{name}.yaml")


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_file_fits(name: str) -> None:
    assert Validator().fits(top_schema(name), shipped_data(name))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("tiny-cpu", "zz", 1),
        ("tiny-cpu", "name", 3),
        ("tiny-cpu", "schema", "firmtoken/2"),
        ("tiny-cpu", "serving", {"context": "64q"}),
        ("tiny-cpu", "serving", {"requests": 0}),
        ("tiny-cpu", "hardware", {"name": "x"}),
        ("tiny-cpu", "hardware", {"extends": "x", "zz": 1}),
        ("tiny-cpu", "kernels", {"gdn": 3}),
        ("tiny-cpu-resident", "hardware", {"cpu": {"memory": "512"}}),
        ("hardware/cpu", "gpu", {"memory": "1GiB"}),
        ("models/tiny-moe", "source", {"path": "a", "hub": "a/b"}),
        ("models/tiny-moe", "dialect", "Not This"),
    ],
)
def test_a_wrong_value_does_not_fit(name: str, field: str, value: Json) -> None:
    data = shipped_data(name)
    data[field] = value
    fits = Validator().fits(top_schema(name), data)
    assert fits == (
        name == "hardware/rtx-4090"
    )  # `gpu: null` fits: that a device lacks is no matter of form


@pytest.mark.parametrize(
    "fields",
    [
        {"extends": "tiny-cpu.yaml"},
        {"extends": "tiny-cpu.yaml", "hardware": {"cpu": {"memory": "64MiB"}}, "cache": None},
        {"extends": "tiny-cpu.yaml", "model": {"source": {"revision": "abc"}}},
        {"hardware": "ft:hardware/cpu", "kernels": {"gdn.decode": {"avoid": ["x"]}}},
        {"serving": {"context": "max", "pool": 8209}, "schedule": {"step_deadline": "500ms"}},
    ],
)
def test_what_the_loader_takes_fits(fields: Json) -> None:
    data = fields if "extends" in fields else shipped_data("tiny-cpu") | fields
    assert Validator().fits(profile_json_schema(), data)


def properties(schema: Json) -> Iterator[tuple[str, Json]]:
    for name, definition in schema["definitions"].items():
        for field, each in definition.get("properties", {}).items():
            yield f"{name}.{field}", each


def test_every_field_has_a_description() -> None:
    lacking = [
        name for name, each in properties(profile_json_schema()) if not each.get("description")
    ]
    assert lacking == []
