"""What should have come before ready is counted: the allocator is made up, Triton's hooks are its own."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from triton import knobs

from firmtoken.runtime.engine.after_ready import AfterReady
from firmtoken.runtime.engine.messages import Late

Counts = dict[str, Any]


@pytest.fixture
def allocator(monkeypatch: pytest.MonkeyPatch) -> Counts:
    stats = {"allocation": {"all": {"allocated": 7}}, "num_device_alloc": 3}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda: stats)
    return stats


@pytest.fixture(autouse=True)
def hooks() -> Iterator[None]:
    yield
    knobs.runtime.jit_post_compile_hook = None
    knobs.runtime.kernel_load_end_hook.calls.clear()


def test_what_was_done_before_does_not_count(allocator: Counts) -> None:
    assert AfterReady().late() == Late()


def test_each_kind_has_a_counter_of_its_own(allocator: Counts) -> None:
    after = AfterReady()
    allocator["allocation"]["all"]["allocated"] += 4
    allocator["num_device_alloc"] += 1
    for _ in range(3):
        knobs.runtime.jit_post_compile_hook(key="", repr="", fn=None, compile=None)
    for _ in range(2):
        knobs.runtime.kernel_load_end_hook(None, None, "kernel", None, "")
    assert after.late() == Late(allocations=4, device_allocations=1, compilations=3, module_loads=2)


def test_a_gpu_that_was_never_asked_for_anything_has_counts_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", dict)
    assert AfterReady().late() == Late()
