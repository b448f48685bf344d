"""A file of a checkpoint, before it is opened: a FIFO or a device would keep its reader for ever."""

import json
import os
import stat
from collections import Counter
from contextlib import suppress
from pathlib import Path

from firmtoken.runtime.weights.errors import LoadError

MAX_SHOWN = 80
"""Letters of a file's text that a sentence repeats."""
KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def regular_size(path: Path, hint: str) -> int:
    """Bytes of a regular file, or of what a link to one leads to; raises `LoadError` for anything else."""
    try:
        status = path.stat()
    except OSError as error:
        raise unreadable(path, error, hint) from error
    if not stat.S_ISREG(status.st_mode):
        found = next((name for is_kind, name in KINDS if is_kind(status.st_mode)), "another kind")
        raise LoadError(file=path.name, expected="a regular file", found=found, hint=hint)
    return status.st_size


def unreadable(path: Path, error: OSError, hint: str) -> LoadError:
    """The system's reason as our fault."""
    return LoadError(
        file=path.name,
        expected="a readable file",
        found=error.strerror or str(error),
        hint=hint,
    )


def read_object(path: Path, hint: str) -> dict[str, object]:
    """A JSON object; raises `LoadError` for anything else."""
    regular_size(path, hint)
    try:
        content = parse_json(path.read_bytes())
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
