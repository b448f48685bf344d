"""Each field of a profile is part of the fingerprint, except a list that can be read here."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from firmtoken.compiler.fingerprint import fingerprint
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile
from firmtoken.schema.profile import ApiKeys, Profile
from firmtoken.schema.section import Section

PROFILES = Path(__file__).resolve().parents[2] / "profiles"

OUTSIDE = {
    "name",
    "description",
    "server.host",
    "server.port",
    "server.api_keys.file",
    "server.log_file",
    "model.perplexity.text",
    "model.perplexity.max",
    "model.source.path",
    "hardware.host.threads",
}
"""D9, D12: where it is, what it is called, who may ask."""

Path_ = tuple[str, ...]


def leaves(section: Section, at: Path_ = ()) -> Iterator[tuple[Path_, object]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from leaves(value, (*at, name))
        else:
            yield (*at, name), value


def changed(value: object) -> object:
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, Mapping):
        return {**value, "bf16": 1.0}
    return f"{value}x"


def with_change(section: Section, at: Path_) -> Section:
    name, *rest = at
    value = getattr(section, name)
    new = with_change(value, tuple(rest)) if rest else changed(value)
    return section.model_copy(update={name: new})


def profiles() -> Iterator[tuple[str, Profile]]:
    for name in ("tiny-cpu", "4090-qwen"):
        profile = load_profile(str(PROFILES / f"{name}.yaml")).profile
        server = profile.server.model_copy(update={"api_keys": ApiKeys(file="keys.txt")})
        yield name, profile.model_copy(update={"server": server})


CASES = [
    pytest.param(profile, at, id=f"{name}-{'.'.join(at)}")
    for name, profile in profiles()
    for at, _ in leaves(profile)
]


@pytest.mark.parametrize(("profile", "at"), CASES)
def test_a_changed_field_changes_the_fingerprint_unless_it_is_listed(
    profile: Profile, at: Path_
) -> None:
    other = with_change(profile, at)
    assert isinstance(other, Profile)
    same = fingerprint(other, CARDS) == fingerprint(profile, CARDS)
    assert same == (".".join(at) in OUTSIDE)


def test_a_changed_card_changes_the_fingerprint() -> None:
    _, profile = next(profiles())
    assert fingerprint(profile, CARDS[1:]) != fingerprint(profile, CARDS)
