"""What a diagnosis proposes, as profiles: each change of its hint, and one step beyond each limit.

Where a hint speaks in prose, `remedy.txt` beside the profile holds the change: arguments of `--set`, or `OLD -> NEW`.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROFILE = "profile.yaml"
DIAGNOSIS = re.compile(
    r"(?P<place>[^`\n]*): `(?P<field>[^`]+)`: (?P<message>.+)(\n  hint: (?P<hint>.+))?"
)
LITERAL = re.compile(r"`([^`]+)`")
TOKEN = re.compile(r"[^\s,{}\[\]]+")
TOGETHER = re.compile(r"with `([\w.]+): (\w+)` set `([\w.]+)` to at most (\d+)")
HUNDREDTH = re.compile(r"(?P<amount>\d+\.\d\d)(?P<unit>[KMGT]iB)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One refusal as it is printed."""

    file: str
    line: int
    column: int
    field: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A profile that a hint proposes, or one step beyond it."""

    text: str
    """The profile's own file."""
    overrides: tuple[str, ...] = ()
    fits: bool = True
    """Whether the plan must compile."""


def diagnoses(text: str) -> list[Diagnosis]:
    found = []
    for match in DIAGNOSIS.finditer(text):
        file, _, position = match["place"].partition(":")
        line, _, column = position.rpartition(":") if file == PROFILE else ("1", "", "1")
        found.append(
            Diagnosis(
                file=file,
                line=int(line),
                column=int(column),
                field=match["field"],
                message=match["message"],
                hint=match["hint"] or "",
            )
        )
    return found


def proposed(told: Diagnosis, folder: Path) -> Iterator[Change]:
    """What the hint tells to do; all of it, and one step more where it gives a limit."""
    text = (folder / PROFILE).read_text()
    if (prose := folder / "remedy.txt").is_file():
        for line in prose.read_text().splitlines():
            old, arrow, new = line.partition(" -> ")
            if arrow:
                yield Change(text=text.replace(old, new))
            else:
                yield Change(text=text, overrides=tuple(shlex.split(line)))
        return
    hint = told.hint.partition("; needed are")[0]
    yield from together(hint, text)
    hint = TOGETHER.sub("", hint)
    besides, also, alone = hint.rpartition(" as well; ")
    base = tuple(f"{field}={value}" for field, value in least_sizes(besides))
    yield from settings(alone, text, base)
    if not also:
        yield from larger_machines(alone, text)
        yield from written(told, alone, text)
        yield from by_phase(told, alone, text)
        yield from beside(told, alone, text)


def together(hint: str, text: str) -> Iterator[Change]:
    """`with `x.y: v` set `z.w` to at most 5`: two changes at once."""
    besides = tuple(
        f"{field}={value}" for field, value in least_sizes(hint.partition(" as well; ")[0])
    )
    base = besides if " as well; " in hint else ()
    for field, value, limited, number in TOGETHER.findall(hint):
        both = (*base, f"{field}={value}")
        yield Change(text=text, overrides=(*both, f"{limited}={number}"))
        yield Change(text=text, overrides=(*both, f"{limited}={int(number) + 1}"), fits=False)


def settings(hint: str, text: str, base: tuple[str, ...]) -> Iterator[Change]:
    """`set `x.y` to at most 5`, `to `auto``; `base`: what has to change as well."""
    for field, rest in re.findall(
        r"set `([\w.]+)` to ((?:(?:at most \d+|`\w+`)(?:, or to | or )?)+)", hint
    ):
        for number in re.findall(r"at most (\d+)", rest):
            yield Change(text=text, overrides=(*base, f"{field}={number}"))
            yield Change(text=text, overrides=(*base, f"{field}={int(number) + 1}"), fits=False)
        for word in LITERAL.findall(rest):
            yield Change(text=text, overrides=(*base, f"{field}={word}"))
    for field, value in re.findall(r"use `(\w+\.\w+): (\w+)`", hint):
        yield Change(text=text, overrides=(*base, f"{field}={value}"))


def least_sizes(hint: str) -> list[tuple[str, str]]:
    return re.findall(r"`([\w.]+)` of at least `([\d.]+[KMGT]iB)`", hint)


def larger_machines(hint: str, text: str) -> Iterator[Change]:
    """All of the sizes that it takes, and each of them a hundredth short."""
    sizes = least_sizes(hint)
    if sizes:
        enough = tuple(f"{field}={value}" for field, value in sizes)
        yield Change(text=text, overrides=enough)
    for short in range(len(sizes)):
        scarce = tuple(
            f"{field}={below(value) if index == short else value}"
            for index, (field, value) in enumerate(sizes)
        )
        yield Change(text=text, overrides=scarce, fits=False)


def below(value: str) -> str:
    match = HUNDREDTH.fullmatch(value)
    assert match is not None, value
    return f"{float(match['amount']) - 0.01:.2f}{match['unit']}"


def written(told: Diagnosis, hint: str, text: str) -> Iterator[Change]:
    """Hints about the value at the place of the diagnosis, about its line, or about a field beside it."""
    if "remove this line" in hint:
        yield Change(text=without_line(told, text))
    for side, value in limits(hint):
        yield Change(text=replaced(told, text, value))
        if value.isdigit():
            beyond = str(int(value) + (1 if side == "most" else -1))
            yield Change(text=replaced(told, text, beyond), fits=False)
    for words in re.findall(r"(?:did you mean|^use|set it to) ((?:`[^`]+`(?:, | or )?)+)", hint):
        for word in LITERAL.findall(words):
            if ": " in word:
                continue
            yield Change(text=replaced(told, text, word))
    if hint == "write one of them":
        yield Change(text=replaced(told, text, LITERAL.findall(told.message)[0]))


def by_phase(told: Diagnosis, hint: str, text: str) -> Iterator[Change]:
    """`name one for each phase: ...`: a line for each in place of the one that was refused."""
    named = re.findall(r"`kernels\.(\w+\.\w+): (\w+)`", hint)
    if hint.startswith("name one for each phase") and named:
        lines = text.splitlines(keepends=True)
        lines[told.line - 1] = "".join(f"  {row}: {kernel}\n" for row, kernel in named)
        yield Change(text="".join(lines))


def beside(told: Diagnosis, hint: str, text: str) -> Iterator[Change]:
    """Hints about another field of the same section."""
    section = told.field.rpartition(".")[0]
    for word in re.findall(r"remove `(\w+)`", hint):
        yield Change(text=text, overrides=(f"{section}.{word}=auto",))
    for word, value in re.findall(r"use `(\w+): (\w+)`", hint):
        yield Change(text=text, overrides=(f"{section}.{word}={value}", f"{told.field}=auto"))
    for word, side, value in re.findall(
        r"(?:raise|lower) `(\w+)` to at (least|most) `(\w+)`", hint
    ):
        yield Change(text=text, overrides=(f"{section}.{word}={value}",))
        if value.isdigit():
            beyond = int(value) + (1 if side == "most" else -1)
            yield Change(text=text, overrides=(f"{section}.{word}={beyond}",), fits=False)


def limits(hint: str) -> Iterator[tuple[str, str]]:
    yield from re.findall(r"(?:write|set it to) at (most|least) `?(\w+)", hint)
    for value, side in re.findall(r"write `(\w+)` or (less|more)", hint):
        yield "most" if side == "less" else "least", value


def without_line(told: Diagnosis, text: str) -> str:
    """The file without the line, and without its section if that was all of it."""
    lines = text.splitlines(keepends=True)
    at = told.line - 1
    alone = lines[at - 1].rstrip().endswith(":") and not lines[at + 1 :]
    return "".join((*lines[: at - alone], *lines[at + 1 :]))


def replaced(told: Diagnosis, text: str, word: str) -> str:
    """The file with the word at the diagnosis' place, key or value, replaced."""
    assert told.file == PROFILE, told
    lines = text.splitlines(keepends=True)
    line = lines[told.line - 1]
    match = TOKEN.match(line, told.column - 1)
    assert match is not None, line
    end = match.end() - match[0].endswith(":")
    lines[told.line - 1] = line[: match.start()] + word + line[end:]
    return "".join(lines)
