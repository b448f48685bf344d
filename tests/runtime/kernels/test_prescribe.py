"""`prescribe` overwrites the router's choice by position and sequence, and leaves padding alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.runtime.kernels.interpreter import interpret

from firmtoken.runtime.kernels.batch import Batch

CONVERSATION, POSITIONS, K = 5, 13, 3


@pytest.mark.parametrize("padding", [0, 2])
def test_each_row_reads_the_row_of_its_position_and_its_sequence(
    make_batch: Callable[..., Batch],
    part: Any,
    kernel: Callable[..., Any],
    poisoned: Callable[..., torch.Tensor],
    padding: int,
) -> None:
    batch = make_batch(
        [part(rows=3, start=11), part(rows=1, start=4), part(rows=2, start=11)], padding=padding
    )
    routes = torch.arange(POSITIONS * K, dtype=torch.int32).view(POSITIONS, K)
    ids = poisoned(batch.rows, K, dtype=torch.int32)
    kernel("prescribe")(batch, ids=ids, routes=routes, conversation=CONVERSATION)
    rows = [11, 12, 0, (4 + 5) % 13, (11 + 10) % 13, (12 + 10) % 13]
    assert torch.equal(ids[: batch.real_rows], routes[rows])
    assert (ids[batch.real_rows :] == 12_345).all()


def test_the_triton_kernel_does_the_same_under_the_interpreter() -> None:
    interpret("interpreted_prescribe.py")
