"""Conditions of hazards: `{"capability": "8.9", "torch": "<2.12"}`, read once, asked of a machine, said in words.

A condition is a row of terms that must all hold, a term a subject with a text. Numbers (versions and sizes) know
`8.9` (begins with), `<2.12`, `>=3.8`, several of them joined by commas, and for sizes `%64` (no multiple of). Words
are joined by `|`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from firmtoken.compiler.quantities import size

Numbers = tuple[int, ...]
"""A version by its parts; a size as its only one."""
Found = Numbers | str | None
"""What is known of a subject; `None`: nothing."""

VERSIONS: Mapping[str, str] = {
    "capability": "compute capability",
    "torch": "torch",
    "triton": "triton",
    "flashinfer": "flashinfer",
    "cuda": "CUDA",
    "nvcc": "nvcc",
    "driver": "driver",
}
"""Subject -> its name for people."""
SIZES: Mapping[str, str] = {
    "memory": "of device memory",
    "shared_memory": "of shared memory a block",
    "head_dim": "elements a head",
    "hidden_size": "hidden elements",
    "expert_width": "elements an expert is wide",
    "expert_slots": "expert slots",
    "slot_words": "32-bit words in all slots of one matrix",
    "page_size": "tokens a page",
    "requests": "requests",
    "context": "tokens of context",
    "pinnable_percent": "% of host memory pinned",
}
"""Subject -> its unit for people."""
BYTES = ("memory", "shared_memory")
WORDS: Mapping[str, Mapping[str, str]] = {
    "os": {"linux": "linux", "wsl": "wsl", "windows": "windows"},
    "kv_dtype": {
        "bf16": "bf16 keys and values",
        "fp8": "fp8 keys and values",
        "nvfp4": "nvfp4 keys and values",
    },
    "graphs": {"auto": "captured graphs", "off": "no graphs"},
    "banks": {"auto": "banks anywhere", "shared": "shared banks", "engine": "banks of the engine"},
    "toolkit": {"same": "nvcc of CUDA's major version", "other": "nvcc of another major version"},
}
"""Subject -> the words it may be, each with its name for people."""
UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

NUMBER = re.compile(r"(?P<relation><|>=|%|)(?P<digits>[0-9]+(\.[0-9]+)*)(?P<unit>KiB|MiB|GiB|)")


class BadCondition(Exception):
    """A text that is no condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One demand on one subject."""

    subject: str
    relation: str
    """`<`, `>=`, `%` (no multiple of), `=` (begins with), or `in` for words."""
    numbers: Numbers = ()
    words: tuple[str, ...] = ()

    def meets(self, found: Numbers | str) -> bool:
        """Whether what was found is what this demands."""
        if isinstance(found, str):
            return found in self.words
        wanted = self.numbers
        padded = (*found, *(0 for _ in wanted[len(found) :]))
        match self.relation:
            case "<":
                return padded < wanted
            case ">=":
                return padded >= wanted
            case "%":
                return found[0] % wanted[0] != 0
        return padded[: len(wanted)] == wanted

    def __str__(self) -> str:
        if self.words:
            return " or ".join(WORDS[self.subject][word] for word in self.words)
        if self.subject in SIZES:
            forms = {"<": "below {}", ">=": "{} or more", "%": "no multiple of {}", "=": "{}"}
            number = self.numbers[0]
            shown = size(number) if self.subject in BYTES else f"{number:,}"
            return f"{forms[self.relation].format(shown)} {SIZES[self.subject]}"
        version = ".".join(map(str, self.numbers))
        # A capability is no release: nothing is `before` it.
        before = "below" if self.subject == "capability" else "before"
        relation = {"<": f"{before} ", ">=": "from ", "=": ""}[self.relation]
        return f"{VERSIONS[self.subject]} {relation}{version}"


def parse_condition(written: Mapping[str, str]) -> tuple[Term, ...]:
    """The terms of one condition; raises `BadCondition` for an unknown subject or a text that says nothing."""
    return tuple(term for subject, text in written.items() for term in _terms(subject, text))


def version(text: str) -> Numbers:
    """`2.12.1+cu130` -> (2, 12, 1); what is not a number ends it, so that `nightly` is ()."""
    numbers = []
    for part in text.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers)


def _terms(subject: str, text: str) -> tuple[Term, ...]:
    if subject in WORDS:
        words = tuple(text.split("|"))
        if unknown := [word for word in words if word not in WORDS[subject]]:
            raise BadCondition(f"`{subject}` is never `{unknown[0]}`")
        return (Term(subject=subject, relation="in", words=words),)
    if subject not in VERSIONS and subject not in SIZES:
        raise BadCondition(f"there is no subject `{subject}`")
    return tuple(_number_term(subject, part) for part in text.split(","))


def _number_term(subject: str, text: str) -> Term:
    found = NUMBER.fullmatch(text)
    if found is None:
        raise BadCondition(f"`{subject}: {text}` is no comparison")
    relation, digits, unit = found["relation"], found["digits"], found["unit"]
    numbers = version(digits)
    is_size = subject in SIZES
    looks_sized, looks_versioned = bool(unit) or relation == "%", len(numbers) > 1
    if looks_versioned if is_size else looks_sized:
        raise BadCondition(f"`{subject}: {text}` mixes a size and a version")
    if relation == "%" and numbers[0] == 0:
        raise BadCondition(f"`{subject}: {text}` divides by nothing")
    if is_size:
        numbers = (numbers[0] * UNITS[unit],)
    return Term(subject=subject, relation=relation or "=", numbers=numbers)
