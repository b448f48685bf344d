"""`DrawnTokens`: what runs draw on its way to the host, so that a step can be launched before the last one was read."""

from collections.abc import Callable
from itertools import cycle

import torch

from firmtoken.compiler.steps_ahead import UNDER_WAY

Read = Callable[[], list[int]]
"""Waits until the tokens are there."""


class DrawnTokens:
    """Of a GPU: one pinned place and one event a run, in turns; what is not read in time is overwritten."""

    def __init__(self, most: int) -> None:
        """`most`: tokens of one run."""
        self._places = cycle(
            [
                (
                    torch.zeros(most, dtype=torch.int64, pin_memory=True),
                    torch.cuda.Event(),  # type: ignore[no-untyped-call]  # torch has no type for it
                )
                for _ in range(UNDER_WAY)
            ]
        )

    def bring(self, tokens: torch.Tensor) -> Read:
        """`tokens`: int64 [S], drawn by what was launched on the current stream."""
        place, there = next(self._places)
        host = place[: len(tokens)]
        host.copy_(tokens, non_blocking=True)
        there.record()

        def read() -> list[int]:
            there.synchronize()
            numbers: list[int] = host.tolist()
            return numbers

        return read
