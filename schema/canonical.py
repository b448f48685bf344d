"""The profile as plain data for the fingerprint: what was asked for, not where or under which name."""

from collections.abc import Mapping

from firmtoken.schema.outline import spelling
from firmtoken.schema.profile import Profile
from firmtoken.schema.section import Section

Json = dict[str, "Json"] | list["Json"] | str | int | float | bool | None

LEFT_OUT = frozenset(
    {
        "name",
        "description",
        "server",
        "model.perplexity",
        "model.source.path",
        "hardware.host.threads",
    }
)
"""Fields that change no choice (D9, D12)."""


def canonical(profile: Profile) -> dict[str, Json]:
    """Equal for profiles that ask for the same; keys sorted, sizes and rates as numbers."""
    return section_data(profile, "")


def section_data(section: Section, prefix: str) -> dict[str, Json]:
    fields = {
        spelling(name, field): getattr(section, name)
        for name, field in type(section).model_fields.items()
    }
    return {
        name: data(fields[name], f"{prefix}{name}.")
        for name in sorted(fields)
        if f"{prefix}{name}" not in LEFT_OUT
    }


def data(value: object, prefix: str) -> Json:
    match value:
        case Section():
            return section_data(value, prefix)
        case Mapping():
            return {str(key): data(value[key], f"{prefix}{key}.") for key in sorted(value)}
        case tuple():
            return [data(item, prefix) for item in value]
        case str() | int() | float() | None:
            return value
    raise AssertionError(f"a profile holds no {type(value).__name__}")
