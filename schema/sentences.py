"""Our sentence for every error that pydantic can find in a profile."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import ErrorDetails

from firmtoken.schema.diagnostic import Fault, did_you_mean, listing, literal
from firmtoken.schema.outline import all_fields, known_fields
from firmtoken.schema.units import kind_of

Steps = tuple[str | int, ...]

EXAMPLES: Mapping[str, str] = {
    "schema": "start the file with `schema: firmtoken/1`",
    "hardware": "for example `hardware: ft:hardware/rtx-4090`",
    "model": "for example `model: ft:models/tiny-moe`",
    "model.source": "for example `source: {path: weights/my-model}`",
}


FORMS = "`ft schema` prints what each field takes"


def sentence(error: ErrorDetails, steps: Steps) -> Fault:
    """What `error`, found at `steps`, is called here; pydantic's own words if it is a stranger."""
    explain = SENTENCES.get(error["type"])
    if explain is None:
        return Fault(code=error["type"], message=error["msg"], hint=FORMS)
    return explain(error, steps)


def context(error: ErrorDetails) -> Mapping[str, Any]:  # pydantic's own type
    return error.get("ctx", {})


def found(error: ErrorDetails) -> str:
    return kind_of(error["input"])


def fault(error: ErrorDetails, message: str, hint: str | None = None) -> Fault:
    """Whoever has no hint of its own sends the reader to the list of all fields."""
    hint = hint or FORMS
    return Fault(code=error["type"], message=message, hint=hint)


def missing(error: ErrorDetails, steps: Steps) -> Fault:
    path = ".".join(str(step) for step in steps)
    return fault(
        error,
        f"missing field `{literal(steps[-1])}`",
        EXAMPLES.get(path, f"add `{literal(steps[-1])}: ...`"),
    )


def unknown(error: ErrorDetails, steps: Steps) -> Fault:
    name = str(steps[-1])
    return fault(error, f"unknown field `{literal(name)}`", near_field(name, steps[:-1]))


def near_field(name: str, parents: Steps) -> str | None:
    """A field of that section with nearly that name, the same name elsewhere, or all there are."""
    siblings = list(known_fields([str(step) for step in parents]))
    if name == "<<":
        return "merge keys are not read; use `extends`"
    near = did_you_mean(name, siblings)
    if near is not None:
        return near
    elsewhere = [".".join(path) for path in all_fields() if path[-1] == name]
    if elsewhere:
        return f"did you mean `{elsewhere[0]}`?"
    return f"fields here are {listing(siblings)}" if siblings else None


def expected(what: str, hint: str | None = None) -> Callable[[ErrorDetails, Steps], Fault]:
    def explain(error: ErrorDetails, steps: Steps) -> Fault:
        return fault(error, f"expected {what}, found {found(error)}", hint)

    return explain


def whole_number(error: ErrorDetails, steps: Steps) -> Fault:
    example = 1919 if steps[-1:] == ("port",) else 8
    return fault(
        error,
        f"expected a whole number, found {found(error)}",
        f"write digits, for example `{example}`",
    )


def text(error: ErrorDetails, steps: Steps) -> Fault:
    value = error["input"]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    hint = (
        f'write `"{literal(value)}"`, in quotes' if is_number else "write one word or quoted text"
    )
    return fault(error, f"expected text, found {found(error)}", hint)


def section(error: ErrorDetails, steps: Steps) -> Fault:
    path = [str(step) for step in steps]
    if path in (["hardware"], ["model"]):
        message = f"expected a path or a mapping of fields, found {found(error)}"
        return fault(error, message, EXAMPLES[path[0]])
    names = listing(known_fields(path))
    hint = f"fields here are {names}" if names else None
    return fault(error, f"expected a mapping of fields, found {found(error)}", hint)


def choice(error: ErrorDetails, steps: Steps) -> Fault:
    words = re.findall(r"'([^']*)'", str(context(error).get("expected", "")))
    near = did_you_mean(str(error["input"]), words) if isinstance(error["input"], str) else None
    one = f"expected {listing(words)}" if len(words) == 1 else f"expected one of {listing(words)}"
    usual = f"write `{words[0]}`" if len(words) == 1 else "write one of them"
    return fault(error, f"{one}, found {found(error)}", near or usual)


def bound(side: str, key: str, remedy: str) -> Callable[[ErrorDetails, Steps], Fault]:
    def explain(error: ErrorDetails, steps: Steps) -> Fault:
        limit = context(error)[key]
        message = f"must be {side} `{limit}`, found {found(error)}"
        return fault(error, message, remedy.format(limit))

    return explain


def length(side: str, key: str, noun: str, remedy: str) -> Callable[[ErrorDetails, Steps], Fault]:
    def explain(error: ErrorDetails, steps: Steps) -> Fault:
        return fault(error, f"must have {side} {context(error)[key]} {noun}", remedy)

    return explain


PATTERNS: Mapping[str, str] = {
    "compute_capability": 'for example `"8.9"`',
    "hub": "for example `nvidia/Qwen3.6-35B-A3B-NVFP4`",
    "revision": "a branch, a tag, or the 40 digits of a commit",
    "family": "for example `qwen3_5_moe`",
    "dialect": "for example `qwen3_5`",
    "kernels": "a key is an op, or an op and a phase: `moe_gate_up` or `moe_gate_up.decode`",
}


def pattern(error: ErrorDetails, steps: Steps) -> Fault:
    named = next((str(step) for step in steps if step in PATTERNS), "")
    return fault(error, f"{found(error)} has the wrong form", PATTERNS.get(named))


def own(error: ErrorDetails, steps: Steps) -> Fault:
    """An error that this room raised: it brings its sentence along."""
    details = context(error)
    code = details.get("code", error["type"])
    return Fault(code=code, message=str(details["message"]), hint=details["hint"])


def source(error: ErrorDetails, steps: Steps) -> Fault:
    hint = "`path: FOLDER`, `hub: ORG/NAME` or `synthetic: {seed: 0}`"
    if isinstance(error["input"], Mapping):
        return fault(error, "expected exactly one of `path`, `hub`, `synthetic`", hint)
    return fault(error, f"expected a mapping of fields, found {found(error)}", hint)


SENTENCES: Mapping[str, Callable[[ErrorDetails, Steps], Fault]] = {
    "missing": missing,
    "extra_forbidden": unknown,
    "model_type": section,
    "dict_type": expected("a mapping of fields", "write `name: value` lines"),
    "tuple_type": expected("a list", "write `[first, second]`"),
    "string_type": text,
    "string_unicode": expected("text", "save the file as UTF-8"),
    "string_too_short": length(
        "at least", "min_length", "letter", "write a text, or leave the field out"
    ),
    "string_too_long": length("at most", "max_length", "letters", "shorten it"),
    "string_pattern_mismatch": pattern,
    "int_type": whole_number,
    "float_type": expected("a number", "write digits, for example `1.5`"),
    "finite_number": expected("a finite number", "write digits, for example `1.5`"),
    "greater_than": bound("above", "gt", "write more than `{}`"),
    "greater_than_equal": bound("at least", "ge", "write `{}` or more"),
    "less_than": bound("below", "lt", "write less than `{}`"),
    "less_than_equal": bound("at most", "le", "write `{}` or less"),
    "too_short": length("at least", "min_length", "item", "add one, or leave the field out"),
    "literal_error": choice,
    "quantity": own,
    "device": own,
    "source_kind": source,
    "kernel_choice": expected("the name of a kernel", "or `{avoid: [names]}`"),
}
