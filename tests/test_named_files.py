"""Every file of ours that a text names by its path is there."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("schema", "compiler", "runtime")
PATH = re.compile(
    r"(?<![\w./-])(?:schema|compiler|runtime|tests|profiles)/[\w./-]+\.(?:py|md|yaml)\b"
)
EXAMPLES = {"profiles/x.yaml"}


def texts() -> Iterator[Path]:
    yield ROOT / "README.md"
    for room in ROOMS:
        yield from sorted(
            path for path in (ROOT / room).rglob("*") if path.suffix in (".py", ".md")
        )


def test_every_file_that_a_text_names_is_there() -> None:
    wrong = [
        f"{text.relative_to(ROOT)}: {name}"
        for text in texts()
        for name in sorted({*PATH.findall(text.read_text())} - EXAMPLES)
        if not (ROOT / name).is_file()
    ]
    assert wrong == []


def test_a_named_file_is_seen_in_a_sentence() -> None:
    assert PATH.findall(
        "held by `tests/a/b.py`, (runtime/kernels/NOTES.md) and x/profiles/no.yaml."
    ) == [
        "tests/a/b.py",
        "runtime/kernels/NOTES.md",
    ]
