"""Every error that a profile can cause has our sentence."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from firmtoken.schema.assembly import Assembly
from firmtoken.schema.profile import Profile
from firmtoken.schema.references import File, argument_file
from firmtoken.schema.sentences import SENTENCES, sentence
from firmtoken.schema.tree import plain
from firmtoken.schema.validation import is_mark

WRONG: tuple[Any, ...] = (
    None, True, 0, -1, 10**30, 1.5, -0.5, float("nan"), float("inf"), "", "x", "X y", "x" * 20_000,
    "\ud800", [], [1], ["a"], {}, {"zz": 1}, {"avoid": 1}, {"avoid": []}, {"avoid": [1]},
    {"Gemm": "x"}, {"path": 1}, {"hub": "x"}, {"path": "a", "hub": "a/b"}, {"synthetic": {"seed": -1}},
)  # fmt: skip


def whole(name: str) -> dict[str, Any]:
    """A shipped profile with every section written out."""
    file = argument_file(name)
    assert isinstance(file, File)
    data = plain(Assembly().document(file, "", ()))
    assert isinstance(data, dict)
    sections = ("cache", "experts", "schedule", "streams")
    data |= {section: {} for section in sections}
    data |= {"kernels": {"gdn": "torch"}, "server": {"api_keys": {"file": "x"}}}
    data["hardware"].get("gpu", {})["device"] = "auto"
    return data


def paths(data: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(data, dict):
        for key, value in data.items():
            yield from paths(value, (*path, key))


def changed(data: dict[str, Any], path: tuple[Any, ...], value: object) -> Any:
    if not path:
        return value
    twin = copy.deepcopy(data)
    parent: Any = twin
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    return twin


def fields(data: dict[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Every path of the data, and every field that it leaves to its default."""
    yield from paths(data)
    for section in ("serving", "cache", "experts", "schedule", "streams", "server"):
        for name in Profile.model_fields[section].annotation.model_fields:  # type: ignore[union-attr]  # all six are sections
            yield (section, name)
    yield from [("graphs",), ("description",), ("hardware", "software", "torch"), ("zz",)]


@pytest.fixture(scope="module")
def errors() -> list[Any]:
    """What pydantic says to every wrong value at every field."""
    found: list[Any] = []
    for name in ("tiny-cpu", "4090-qwen"):
        data = whole(name)
        for path in fields(data):
            for value in WRONG:
                try:
                    Profile.model_validate(changed(data, path, value))
                except ValidationError as error:
                    found += error.errors(include_url=False)
    return found


def test_pydantic_yields_no_type_that_the_map_lacks(errors: list[Any]) -> None:
    assert {error["type"] for error in errors} - SENTENCES.keys() == set()


def test_the_map_has_no_type_that_pydantic_never_yields(errors: list[Any]) -> None:
    assert SENTENCES.keys() - {error["type"] for error in errors} == set()


def test_every_sentence_is_one_sentence_without_a_full_stop(errors: list[Any]) -> None:
    for error in errors:
        steps = tuple(step for step in error["loc"] if not is_mark(step))
        fault = sentence(error, steps)
        assert fault.message
        assert not fault.message.endswith(".")
        assert "\n" not in fault.message
        assert "Input should" not in fault.message
        assert fault.message.count("`") % 2 == 0


def test_a_stranger_is_told_in_pydantics_words() -> None:
    error: Any = {"type": "new_in_pydantic_9", "loc": ("a",), "msg": "Odd", "input": 1}
    assert sentence(error, ("a",)).message == "Odd"
