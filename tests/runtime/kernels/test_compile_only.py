"""Launches that only compile: several forms side by side, none launched, and what a compiler says is raised."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton")

import triton.language as tl  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime.driver import driver  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

from firmtoken.runtime.kernels.compile_only import compile_only  # noqa: E402


@triton.jit
def add(numbers, count, STEP: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, 32)
    tl.store(numbers + at, tl.load(numbers + at, mask=at < count) + STEP, mask=at < count)


@triton.jit
def wrong(numbers, STEP: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(numbers, tl.arange(0, STEP))


class Numbers:
    """As much of a tensor as a launch looks at before it is one."""

    dtype = "fp32"

    def data_ptr(self) -> int:
        return 4096


class Card:
    """A driver without a card; what it is asked to load or to launch is kept."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.launched: list[Any] = []
        self.utils = self

    def launcher_cls(self, *_: object) -> Any:
        return lambda *arguments: self.launched.append(arguments)

    def get_device_properties(self, _: int) -> dict[str, int]:
        return {"max_shared_mem": 99 * 1024}

    def load_binary(self, name: str, *_: object) -> tuple[int, int, int, int, int]:
        self.loaded.append(name)
        return 1, 1, 32, 0, 1024

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


@pytest.fixture(autouse=True)
def card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    card = Card()
    monkeypatch.setattr(driver, "_active", card)
    yield card
    for function in (add, wrong):
        function.device_caches.clear()


def compiled(function: Any) -> list[Any]:
    return list(function.device_caches[0][0].values())


def test_each_form_is_compiled_and_loaded_and_none_launched(card: Card) -> None:
    launch = JITFunction.run
    with compile_only(2):
        for step in (1, 2, 1):
            add[(1,)](Numbers(), 7, STEP=step)
    assert JITFunction.run is launch
    assert card.loaded == ["add", "add"] and card.launched == []
    first, second = compiled(add)
    assert first.asm["cubin"] and second.asm["cubin"] and first.hash != second.hash
    add[(1,)](Numbers(), 7, STEP=2)
    assert len(card.loaded) == 2 and len(card.launched) == 1


def test_what_the_compiler_says_is_raised_and_launches_launch_again() -> None:
    launch = JITFunction.run
    with pytest.raises(triton.CompilationError), compile_only(2):
        wrong[(1,)](Numbers(), STEP=3)
    assert JITFunction.run is launch
