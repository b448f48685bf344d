"""Quantities with a unit: what may be written (`64k`, `23.5GiB`, `25GB/s`) and the number it becomes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite
from typing import Any, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import PydanticCustomError, core_schema

from firmtoken.schema.diagnostic import Fault, listing, literal
from firmtoken.schema.frozen_map import FrozenMap

NUMBER = re.compile(r"(?P<amount>[0-9]+(\.[0-9]*)?|\.[0-9]+)[ ]*(?P<suffix>[A-Za-z/]*)")
MAX_DIGITS = 30
LEAST_BARE_BYTES = 1024
"""Nobody means fewer bytes: `memory: 24` is a number whose unit was forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One kind of quantity: its suffixes, each with the factor to the number that is kept."""

    noun: str
    suffixes: FrozenMap[str, Fraction]
    example: str
    whole: bool
    """Whether the number that is kept is an integer."""
    floor: bool = False
    """Whether a fraction is dropped (0.1GiB of bytes) instead of refused (1.3k of tokens)."""
    large: bool = False
    """Whether a number too small and without a suffix is one whose suffix was forgotten (25 of bytes per second)."""


def decimal(unit: str, prefixes: str) -> dict[str, Fraction]:
    """Suffixes of powers of 1,000, from none (`B`) up to the last of `prefixes`."""
    return {
        f"{prefix}{unit}": Fraction(1000**power) for power, prefix in enumerate(["", *prefixes])
    }


BINARY = {f"{prefix}iB": Fraction(1024**power) for power, prefix in enumerate("KMGT", start=1)}
COUNT = Unit(noun="a whole number", suffixes=FrozenMap({}), example="8", whole=True)
TOKENS = Unit(
    noun="a number of tokens",
    suffixes=FrozenMap({"k": Fraction(1024), "M": Fraction(1024**2)}),
    example="64k",
    whole=True,
)
BYTES = Unit(
    noun="a number of bytes",
    suffixes=FrozenMap(decimal("B", "KMGT") | BINARY),
    example="24GiB",
    whole=True,
    floor=True,
    large=True,
)
RATE = Unit(
    noun="a number of bytes per second",
    suffixes=FrozenMap(decimal("B/s", "KMGT")),
    example="25GB/s",
    whole=False,
    large=True,
)
FLOPS = Unit(
    noun="a number of operations per second",
    suffixes=FrozenMap(decimal("FLOPS", "KMGTP")),
    example="165TFLOPS",
    whole=False,
    large=True,
)
SECONDS = Unit(
    noun="a duration",
    suffixes=FrozenMap(
        {
            "us": Fraction(1, 10**6),
            "ms": Fraction(1, 1000),
            "s": Fraction(1),
            "m": Fraction(60),
            "h": Fraction(3600),
        }
    ),
    example="30s",
    whole=False,
)


def measure(written: object, unit: Unit) -> int | float | Fault:
    """The number that `written` means in `unit`."""
    if isinstance(written, bool) or not isinstance(written, int | float | str):
        return Fault(
            code="quantity_type",
            message=f"expected {unit.noun}, found {kind_of(written)}",
            hint=f"for example `{unit.example}`",
        )
    if isinstance(written, str):
        amount = scale(written, unit)
    elif not isfinite(written) or (unit is BYTES and 0 < written < LEAST_BARE_BYTES):
        return refuse(written, unit)
    else:
        amount = Fraction(written)
    return amount if isinstance(amount, Fault) else settle(written, amount, unit)


def scale(written: str, unit: Unit) -> Fraction | Fault:
    match = NUMBER.fullmatch(written.strip())
    if match is None or len(match["amount"]) > MAX_DIGITS:
        return refuse(written, unit)
    suffix = match["suffix"]
    if suffix in unit.suffixes:
        return Fraction(match["amount"]) * unit.suffixes[suffix]
    if not suffix and unit is not BYTES:
        return Fraction(match["amount"])
    near = nearest(suffix, unit)
    hint = f"did you mean `{match['amount']}{near}`?" if suffix and near else None
    return refuse(written, unit, hint)


def nearest(suffix: str, unit: Unit) -> str | None:
    """The suffix that was meant by someone who forgot its capitals, its `i`, its `B` or its `/s`."""
    written = suffix.lower()
    alike = [known for known in unit.suffixes if known[:1].lower() == written[:1]]
    binary = "i" in written
    return min(
        alike, key=lambda known: (known.lower() != written, ("i" in known) != binary), default=None
    )


def settle(written: object, amount: Fraction, unit: Unit) -> int | float | Fault:
    if not unit.whole:
        return float(amount)
    if amount.denominator == 1 or unit.floor:
        return int(amount)
    return Fault(
        code="quantity_fraction",
        message=f"`{literal(written)}` is not {unit.noun.replace('a number', 'a whole number')}",
        hint=f"did you mean `{round(amount)}`?",
    )


def refuse(written: object, unit: Unit, hint: str | None = None) -> Fault:
    known = listing(unit.suffixes)
    usual = f"for example `{unit.example}`" + (f"; units are {known}" if known else "")
    return Fault(
        code="quantity_unit", message=f"`{literal(written)}` is not {unit.noun}", hint=hint or usual
    )


def kind_of(value: object) -> str:
    """What a value of YAML is called in a sentence."""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return f"`{literal(value)}`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """Annotation of a field: a number in `unit` within bounds, or one of the words in the field's type."""

    unit: Unit
    least: float
    most: float

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:  # `source` is any type expression: pydantic's own signature
        words = words_of(source)

        def read(written: object) -> object:
            if isinstance(written, str) and written in words:
                return written
            value = self.read(written, words)
            if isinstance(value, Fault):
                raise PydanticCustomError(
                    "quantity",
                    "{message}",
                    {"message": value.message, "hint": value.hint, "code": value.code},
                )
            return value

        return core_schema.no_info_plain_validator_function(
            read, metadata={"words": words, "quantity": self}
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:  # JSON has no narrower type
        words = schema["metadata"]["words"]
        number = {"type": "integer" if self.unit.whole else "number", "minimum": self.least}
        suffixes = "|".join(self.unit.suffixes)
        text = {"type": "string", "pattern": rf"^[0-9.]+ *({suffixes})$"}
        choices: list[dict[str, Any]] = [number | {"maximum": self.most}]  # as above
        choices += [text] if suffixes else []
        choices += [{"enum": list(words)}] if words else []
        return {"anyOf": choices} if len(choices) > 1 else choices[0]

    def read(self, written: object, words: tuple[str, ...]) -> int | float | Fault:
        value = measure(written, self.unit)
        if isinstance(value, Fault):
            return with_words(value, written, words)
        if value < self.least:
            return self.out_of_bounds(written, "at least", self.least)
        if value > self.most:
            return self.out_of_bounds(written, "at most", self.most)
        return value

    def out_of_bounds(self, written: object, side: str, bound: float) -> Fault:
        bare = self.unit.large and not isinstance(written, str) and side == "at least"
        return Fault(
            code="quantity_range",
            message=f"must be {side} `{show(bound, self.unit)}`, found `{literal(written)}`",
            hint=f"a number needs its unit, for example `{self.unit.example}`"
            if bare
            else f"write `{show(bound, self.unit)}` or {'more' if side == 'at least' else 'less'}",
        )


def words_of(source: Any) -> tuple[str, ...]:  # any type expression
    """The literals among the members of a union: `int | Literal["auto"]` -> ("auto",)."""
    members = (source, *get_args(source))
    return tuple(word for member in members for word in get_args(member) if isinstance(word, str))


def with_words(fault: Fault, written: object, words: tuple[str, ...]) -> Fault:
    if not words or (fault.hint or "").startswith("did you mean"):
        return fault
    listed = listing(words)
    return Fault(
        code=fault.code,
        message=fault.message,
        hint=f"{fault.hint}; or {listed}" if fault.hint else f"or {listed}",
    )


def show(amount: float, unit: Unit) -> str:
    """The shortest exact way to write `amount`: 1048576 bytes -> `1MiB`."""
    exact = Fraction(str(amount))
    for suffix, factor in sorted(unit.suffixes.items(), key=lambda item: -item[1]):
        if exact and (exact / factor).denominator == 1:
            return f"{exact / factor}{suffix}"
    return str(amount)
