"""A tree -> a profile, or every fault of the tree at its place."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from firmtoken.schema.contradictions import RULES, contradictions
from firmtoken.schema.diagnostic import SET, Diagnostic, diagnose
from firmtoken.schema.outline import known_fields, sections_in
from firmtoken.schema.profile import Profile
from firmtoken.schema.section import Section
from firmtoken.schema.sentences import Steps, sentence
from firmtoken.schema.tree import MapNode, key_place, plain, value_place, written

KEY_ERRORS = frozenset({"extra_forbidden", "missing"})
"""Errors that are about a name, not about the value behind it."""
KEY_MARK = "[key]"
STRICT = ConfigDict(strict=True, allow_inf_nan=False)


def validate(root: MapNode, broken: Sequence[str]) -> Profile | tuple[Diagnostic, ...]:
    """The profile; `broken` names the parts of `root` that could not be read."""
    data = plain(root)
    profile: Profile | None = None
    faults: list[Diagnostic] = []
    try:
        profile = Profile.model_validate(data)
    except ValidationError as error:
        faults = list(field_faults(error, root, broken))
    values = profile_values(profile) if profile else sound_values(data)
    faults += contradiction_faults(values, root, broken)
    return tuple(faults) if faults or profile is None else profile


def field_faults(
    error: ValidationError, root: MapNode, broken: Sequence[str]
) -> Iterator[Diagnostic]:
    for detail in error.errors(include_url=False):
        steps = tuple(step for step in detail["loc"] if not is_mark(step))
        about_key = detail["type"] in KEY_ERRORS or KEY_MARK in detail["loc"]
        if detail["type"] == "missing" and any(below(steps, part) for part in broken):
            continue
        place = key_place(root, steps) if about_key else value_place(root, steps)
        yield diagnose(sentence(detail, steps), place, dotted(steps))


def is_mark(step: str | int) -> bool:
    """Whether pydantic put this step in: the tag of a union, or the mark of a key."""
    return isinstance(step, str) and (step == KEY_MARK or (step[:1], step[-1:]) == ("<", ">"))


def below(steps: Steps, part: str) -> bool:
    """Whether a field lies in a part; every field lies in the nameless one."""
    return not part or steps[:1] == (part,)


def dotted(steps: Steps) -> str:
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path.removeprefix(".")


def contradiction_faults(
    values: Mapping[str, object], root: MapNode, broken: Sequence[str]
) -> Iterator[Diagnostic]:
    sound = {
        field: value
        for field, value in values.items()
        if not any(below((field.split(".")[0],), part) for part in broken)
    }
    for rule, fault in contradictions(sound):
        field = to_blame(rule.fields, root)
        yield diagnose(fault, value_place(root, field.split(".")), field)


def to_blame(fields: Sequence[str], root: MapNode) -> str:
    """The first of the fields that was written, what the user wrote last before what it lies over."""
    stated = [field for field in fields if written(root, field.split("."))]
    order = (SET, root.place.file)

    def distance(field: str) -> int:
        file = value_place(root, field.split(".")).file
        return order.index(file) if file in order else len(order)

    return min(stated or fields, key=distance)


def fields_of_rules() -> tuple[str, ...]:
    return tuple(dict.fromkeys(field for rule in RULES for field in rule.fields))


def profile_values(profile: Profile) -> dict[str, object]:
    """The values that rules look at, save those in a section that is absent."""
    values: dict[str, object] = {}
    for field in fields_of_rules():
        *parents, name = field.split(".")
        section: object = profile
        for step in parents:
            section = getattr(section, step) if section is not None else None
        if section is not None:
            values[field] = getattr(section, name)
    return values


def sound_values(data: object) -> dict[str, object]:
    """The same from a profile with faults: what can be said of the fields that have none."""
    values: dict[str, object] = {}
    for field in fields_of_rules():
        with suppress(Unknown, ValidationError):
            values[field] = sound_value(data, field.split("."))
    return values


class Unknown(Exception):
    """A field whose value cannot be said: it, or the section that holds it, is missing or faulty."""


def sound_value(data: object, steps: Sequence[str]) -> object:
    """The value of one field. A section stands for itself: what counts is whether it is there."""
    raw = data
    for depth, step in enumerate(steps):
        field = known_fields(steps[:depth])[step]
        if not isinstance(raw, Mapping) or (step not in raw and field.is_required()):
            raise Unknown(step)
        default = field.get_default()
        raw = raw.get(step, {} if isinstance(default, Section) else default)
    if sections_in(field.annotation):
        if raw is not None and not isinstance(raw, Mapping):
            raise Unknown(steps[-1])
        return raw
    # A type made here, for pydantic; the last item only makes sure that there is one.
    form: Any = Annotated[field.annotation, *field.metadata, "alone"]
    adapter: TypeAdapter[object] = TypeAdapter(form, config=STRICT)
    return adapter.validate_python(raw)
