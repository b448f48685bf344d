"""JSON files of a checkpoint, and why one cannot be read."""

import json
import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

from firmtoken.runtime.weights.errors import LoadError
from firmtoken.schema.regular_file import NotRegular, read_regular

MAX_SHOWN = 80
"""Letters of a file's text that a sentence repeats."""


def unreadable(path: Path, error: OSError, hint: str) -> LoadError:
    """The system's reason as our fault."""
    if isinstance(error, NotRegular):
        return LoadError(file=path.name, expected="a regular file", found=error.kind, hint=hint)
    return LoadError(
        file=path.name,
        expected="a readable file",
        found=error.strerror or str(error),
        hint=hint,
    )


def read_object(path: Path, hint: str) -> dict[str, object]:
    """A JSON object; raises `LoadError` for anything else."""
    try:
        content = parse_json(read_regular(path))
    except OSError as error:
        raise unreadable(path, error, hint) from error
    except ValueError as error:
        raise LoadError(file=path.name, expected="JSON", found=str(error), hint=hint) from error
    if isinstance(content, dict):
        return content
    raise LoadError(file=path.name, expected="a JSON object", found="something else", hint=hint)


def parse_json(text: bytes) -> object:
    """JSON that says each thing once, or a `ValueError` whatever is wrong with it."""
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except RecursionError as error:
        raise ValueError("brackets nested too deeply") from error


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # Python would keep the last one, other readers the first.
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"`{twice[:MAX_SHOWN]}` twice in one object")
    return found


def write_note(place: Path, content: bytes) -> None:
    """Whole or not at all. A note saves work; where none can be written, it is done again."""
    new = place.with_name(f".{place.name}.{os.getpid()}.new")
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            new.write_bytes(content)
            new.replace(place)
        finally:
            new.unlink(missing_ok=True)
