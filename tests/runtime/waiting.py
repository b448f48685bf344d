"""Waits that end: with what a test waits for, or with its failure."""

import time
from collections.abc import Callable

import httpx


def until(condition: Callable[[], bool], within_s: float = 5.0, every_s: float = 0.01) -> None:
    """Looks again and again; fails the test when nothing comes."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not within {within_s:g} s"
        time.sleep(every_s)


def until_healthy(address: str, within_s: float = 10.0) -> None:
    """The server at `address` says that it serves."""
    until(lambda: httpx.get(f"{address}/health").status_code == 200, within_s, every_s=0.02)
