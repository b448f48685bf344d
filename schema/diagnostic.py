"""How a person is told that something they wrote is wrong: where, what, and what to do about it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

LONGEST_LITERAL = 80
SET = "--set"
"""Stands for the file of a value that was given on the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What is wrong, before anyone knows where it was written."""

    code: str
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A position in a file; lines and columns start at 1. No file: the command line itself."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        has_lines = self.file not in ("", SET)
        return printable(f"{self.file}:{self.line}:{self.column}" if has_lines else self.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One fault at its place."""

    file: str
    line: int
    column: int
    field: str
    """The dotted path of the field; empty where the fault is about the file."""
    message: str
    """One sentence without a full stop, literals in backticks."""
    hint: str | None = None
    """What to do about it."""
    code: str = "refused"
    """A word for machines."""

    def __str__(self) -> str:
        place = Place(file=self.file, line=self.line, column=self.column)
        subject = f"`{self.field}`" if self.field else ""
        remedy = f"\n  hint: {self.hint}" if self.hint else ""
        return ": ".join(part for part in (str(place), subject, self.message) if part) + remedy


def diagnose(fault: Fault, place: Place, field: str) -> Diagnostic:
    return Diagnostic(
        file=place.file,
        line=place.line,
        column=place.column,
        field=literal(field),
        message=fault.message,
        hint=fault.hint,
        code=fault.code,
    )


class ProfileError(Exception):
    """A profile that cannot be used, with everything that is wrong with it."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(dict.fromkeys(diagnostics))
        super().__init__("\n".join(str(diagnostic) for diagnostic in self.diagnostics))


def literal(written: object) -> str:
    """`written` as it may stand between backticks: short, one line, nothing a terminal obeys."""
    safe = printable(str(written)[: LONGEST_LITERAL + 1].replace("`", "'"))
    return safe if len(safe) <= LONGEST_LITERAL else f"{safe[: LONGEST_LITERAL - 3]}..."


def printable(text: str) -> str:
    """`text` on one line, without anything that a terminal obeys or that has no UTF-8."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


def did_you_mean(written: str, known: Sequence[str]) -> str | None:
    """A hint that names the known word nearest to `written`, if one is near."""
    near = get_close_matches(written.lower(), [word.lower() for word in known], n=1, cutoff=0.6)
    return next((f"did you mean `{word}`?" for word in known if [word.lower()] == near), None)


def listing(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)
