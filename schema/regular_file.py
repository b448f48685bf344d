"""Opens what must be a regular file: a FIFO would keep its reader waiting for a writer, a device might never end.

Whoever reads or appends to a file that a person named, or that others may replace, opens it here and nowhere else.
"""

import errno
import os
import stat
from pathlib import Path

KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class NotRegular(OSError):
    """Something else than a regular file lies there; `strerror` says what, `kind` in two words."""

    def __init__(self, path: str, mode: int) -> None:
        self.kind = next((name for is_kind, name in KINDS if is_kind(mode)), "another kind of file")
        super().__init__(errno.ENOTSUP, f"it is {self.kind}, no regular file", path)


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """A descriptor, never waited for; raises `NotRegular`, or another `OSError`. Usable as `opener` of `open`."""
    flags |= os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.EISDIR):  # a socket; a FIFO or a directory to write
            raise NotRegular(os.fspath(path), Path(path).stat().st_mode) from error
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise NotRegular(os.fspath(path), mode)
    return descriptor


def read_regular(path: Path, most: int = -1) -> bytes:
    """The bytes of a file, `most` of them if that is not negative; raises `OSError`."""
    with open(path, "rb", opener=open_regular) as file:
        return file.read(most)
