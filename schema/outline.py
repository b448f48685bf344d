"""The tree of fields that a profile may have, read off the sections."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from firmtoken.schema.profile import Profile
from firmtoken.schema.section import Section


def spelling(name: str, field: FieldInfo) -> str:
    """How a person writes the field."""
    return field.alias or name


def fields_of(sections: Sequence[type[Section]]) -> dict[str, FieldInfo]:
    return {
        spelling(name, field): field
        for section in sections
        for name, field in section.model_fields.items()
    }


def sections_in(annotation: Any) -> tuple[type[Section], ...]:  # any type expression
    """The sections among the members of a type."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return (annotation,)
    return tuple(section for member in get_args(annotation) for section in sections_in(member))


def known_fields(steps: Sequence[str]) -> dict[str, FieldInfo]:
    """The fields that may stand below `steps`; none if that is no section."""
    sections: tuple[type[Section], ...] = (Profile,)
    is_free = False  # whether the next step is a key of a mapping, which may have any name
    for step in steps:
        if is_free:
            is_free = False
            continue
        field = fields_of(sections).get(step)
        if field is None:
            return {}
        sections = sections_in(field.annotation)
        is_free = get_origin(field.annotation) is Mapping
    return {} if is_free else fields_of(sections)


def all_fields(steps: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every field, a section before its fields."""
    for name in known_fields(steps):
        yield (*steps, name)
        yield from all_fields((*steps, name))
