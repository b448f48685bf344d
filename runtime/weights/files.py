"""A file of a checkpoint, before it is opened: a FIFO or a device would keep its reader for ever."""

import json
import stat
from pathlib import Path

from firmtoken.runtime.weights.errors import LoadError

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


def parse_json(text: bytes) -> object:
    """JSON, or a `ValueError` whatever is wrong with it."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("brackets nested too deeply") from error
