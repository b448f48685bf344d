"""Every `ft ...` that a text tells somebody to type is there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from click import Command, Group

from firmtoken.runtime.cli.run import ft

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ("README.md", "compiler", "profiles", "runtime", "schema")
SUFFIXES = {".md", ".py", ".yaml"}
NAMED = re.compile(
    r"`ft ([a-z][a-z-]*)(?: ([a-z-]+))?|^    (?:\.venv/bin/)?ft ([a-z-]+)(?: ([a-z-]+))?", re.M
)


def texts() -> Iterator[Path]:
    for name in TEXTS:
        place = ROOT / name
        found = [place] if place.is_file() else sorted(place.rglob("*"))
        yield from (path for path in found if path.suffix in SUFFIXES)


def unknown(text: str) -> list[str]:
    """The commands in `text` that `ft` has not."""
    commands: dict[str, Command] = dict(ft.commands)
    wrong = []
    for match in NAMED.finditer(text):
        first, second = (word or "" for word in (match[1] or match[3], match[2] or match[4]))
        command = commands.get(first)
        below = command.commands if isinstance(command, Group) else None
        if command is None or (below is not None and second and second not in below):
            wrong.append(f"ft {first} {second}".rstrip())
    return wrong


def test_every_command_that_a_text_names_is_there() -> None:
    found = {str(path.relative_to(ROOT)): unknown(path.read_text()) for path in texts()}
    assert {path: wrong for path, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("text", ["`ft profile list`", "try `ft serve tiny-cpu`", "    ft nope x"])
def test_a_command_that_is_not_there_is_found(text: str) -> None:
    assert len(unknown(text)) == 1
