"""Kernels compiled beside the load: told while they are waited for, and what a compiler says ends the start."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from firmtoken.runtime.engine import compile_ahead
from firmtoken.runtime.engine.compile_ahead import CompileAhead


def begun(monkeypatch: pytest.MonkeyPatch, work: Any) -> CompileAhead:
    monkeypatch.setattr(compile_ahead, "TELL_EVERY_S", 0.01)
    monkeypatch.setattr(CompileAhead, "_compile", lambda _: work())
    plan: Any = SimpleNamespace()
    interpreter: Any = SimpleNamespace()
    return CompileAhead(plan, interpreter, threads=1)


def test_whoever_waits_tells_so_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, int, int]] = []
    enough = threading.Event()

    def progress(*said: Any) -> None:
        told.append(said)
        if len(told) == 3:
            enough.set()

    with begun(monkeypatch, enough.wait) as kernels:
        kernels.finish(progress)
    assert len(told) >= 3 and set(told) == {("kernels", 0, 0)}


def test_what_the_compiler_says_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("ptxas died")

    with begun(monkeypatch, fail) as kernels, pytest.raises(RuntimeError, match="ptxas died"):
        kernels.finish(lambda *_: None)


def test_a_load_that_fails_does_not_wait_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    with pytest.raises(ValueError), begun(monkeypatch, lambda: end.wait(30)):
        raise ValueError
    assert not end.is_set()
    end.set()
