"""What is no regular file is refused at once, whoever reads or writes at its other end, or nobody."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from firmtoken.schema.regular_file import NotRegular, open_regular, read_regular

pytestmark = pytest.mark.timeout(20)  # what waits, waits for ever


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))


OTHERS: dict[str, Callable[[Path], object]] = {
    "a directory": Path.mkdir,
    "a FIFO": os.mkfifo,
    "a socket": make_socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("mode", ["rb", "ab", "wb", "r+b"])
@pytest.mark.parametrize("kind", OTHERS)
def test_what_is_no_regular_file_is_said_by_its_kind(tmp_path: Path, kind: str, mode: str) -> None:
    path = tmp_path / "file"
    OTHERS[kind](path)
    with pytest.raises(NotRegular) as refused, open(path, mode, opener=open_regular):
        pass
    assert refused.value.kind == kind
    assert refused.value.strerror == f"it is {kind}, no regular file"


def test_a_fifo_that_somebody_writes_is_none_either(tmp_path: Path) -> None:
    path = tmp_path / "file"
    os.mkfifo(path)
    end = os.open(path, os.O_RDWR)  # never waits
    os.write(end, b"text")
    with pytest.raises(NotRegular):
        read_regular(path)
    os.close(end)


def test_a_refusal_leaves_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        with pytest.raises(NotRegular):
            open_regular(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_a_file_is_read_written_and_appended_to_also_through_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(path)
    for mode, text in (("wb", b"one"), ("ab", b" two")):
        with open(link, mode, opener=open_regular) as file:
            file.write(text)
    assert read_regular(path) == read_regular(link) == b"one two"
    assert read_regular(link, 3) == b"one"


def test_what_is_not_there_is_another_fault(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "file")
