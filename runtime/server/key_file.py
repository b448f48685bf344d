"""A file of API keys, as the server and `ft dump` read it. No web framework here: a planner's install has `ft dump`."""

from pathlib import Path

from firmtoken.schema.regular_file import read_regular


class KeysFault(Exception):
    """The file of keys cannot be used."""


def read_keys(path: Path) -> tuple[bytes, ...]:
    """One key a line, at least one; blank lines and lines that begin with `#` do not count. Raises `KeysFault`."""
    try:
        text = read_regular(path).decode("utf-8-sig")
    except OSError as error:
        raise KeysFault(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KeysFault(f"{path}: cannot be read: {error}") from error
    # Bytes: a header carries them, and `str` would split and strip inside letters such as U+0085.
    lines = [line.strip() for line in text.encode().splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith(b"#"))
    if not keys:
        # An empty file must not mean that everyone may.
        raise KeysFault(f"{path}: holds no key")
    return keys
