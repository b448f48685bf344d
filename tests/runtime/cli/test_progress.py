"""Bytes on their way, in words: how many of how many, how fast just now, how long still."""

import pytest

from firmtoken.runtime.cli.progress import (
    ByteProgress,
    CountProgress,
    LineProgress,
    gigabytes,
    remaining,
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lines(
    capsys: pytest.CaptureFixture[str], steps: list[tuple[float, int]], *, on_terminal: bool
) -> str:
    """What is said when so many bytes have arrived at these times; 1 GB of 11 was there before."""
    clock = Clock()
    progress = ByteProgress(
        "downloading",
        total=11 * 10**9,
        begun_at=10**9,
        clock=clock,
        on_terminal=on_terminal,
    )
    for clock.now, arrived in steps:
        progress(arrived)
    progress.end()
    return capsys.readouterr().err


def test_a_line_says_bytes_share_rate_and_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    said = lines(capsys, [(5, 5 * 10**8), (10, 10**9)], on_terminal=False)
    assert said == "downloading 2.00 GB of 11.00 GB (18 %), 100.0 MB/s, 90 s left\n".replace(
        "90 s", "2 min"
    )


def test_the_rate_is_of_the_last_seconds_and_a_stall_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = [(10, 10**9), (20, 2 * 10**9), (30, 2 * 10**9), (40, 2 * 10**9)]
    said = lines(capsys, steps, on_terminal=False).splitlines()
    assert said[-1] == "downloading 3.00 GB of 11.00 GB (27 %), 0.0 MB/s, nothing arrives"


def test_a_terminal_has_one_line_that_is_gone_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = lines(capsys, [(0.2, 10**7), (0.5, 10**8), (1.0, 2 * 10**8)], on_terminal=True)
    assert said.count("\n") == 0
    assert said.count("downloading") == 2
    assert said.endswith("\r\033[K")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.2, "3 s"), (89.9, "90 s"), (90, "2 min"), (3599, "1 h 00 min"), (3660, "1 h 01 min")],
)
def test_time_left_in_words(seconds: float, text: str) -> None:
    assert remaining(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(12_345, "12 kB"), (20_674_519, "20.7 MB"), (23_410_000_000, "23.41 GB")],
)
def test_sizes_in_decimal_units(size: int, text: str) -> None:
    assert gigabytes(size) == text


@pytest.mark.parametrize(
    ("on_terminal", "said"),
    [
        (False, "compiling kernel 1 of 2: embed triton\ncompiling kernel 2 of 2: head triton\n"),
        (
            True,
            "\r\033[Kcompiling kernel 1 of 2: embed triton"
            "\r\033[Kcompiling kernel 2 of 2: head triton\r\033[K",
        ),
    ],
)
def test_each_of_several_things_is_named_when_it_begins(
    capsys: pytest.CaptureFixture[str], on_terminal: bool, said: str
) -> None:
    progress = CountProgress("compiling kernel", total=2, on_terminal=on_terminal)
    for name in ("embed triton", "head triton"):
        progress.begin(name)
    progress.end()
    assert capsys.readouterr().err == said


def test_a_line_longer_than_the_terminal_is_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What wraps is not cleared."""
    monkeypatch.setenv("COLUMNS", "20")
    LineProgress(on_terminal=True).say("engine ready: loaded in 0.7 s")
    LineProgress(on_terminal=False).say("engine ready: loaded in 0.7 s")
    told = "\r\033[Kengine ready: loadeengine ready: loaded in 0.7 s\n"
    assert capsys.readouterr().err == told
