"""Launches `linear` with FP8 or bf16 weights on a GPU: one or two rows by rows, more on tensor cores."""

from dataclasses import dataclass

import torch

from firmtoken.runtime.kernels.early_start import launch_options
from firmtoken.runtime.kernels.linear.few_rows import rows_at_once
from firmtoken.runtime.kernels.linear.plain_rows import (
    launch_constants,
    launch_grid,
    multiply_rows,
    outputs_at_once,
)
from firmtoken.runtime.kernels.linear.plain_tiles import multiply_tiles, tile_constants, tile_grid
from firmtoken.runtime.kernels.matrices import MAX_PARTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Constants of a card: how work is cut, for a kind of GPU. NOTES.md says why."""

    few: int
    """Most rows that go by rows."""
    outputs: int
    unroll: int
    tile_outputs: int
    tile_warps: int
    block: int
    stages: int
    early: int
    """Whether launches start early (`early_start.py`)."""


def launch_product(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    tail: torch.Tensor,
    y: torch.Tensor,
    *,
    num_coded: int,
    starts: tuple[int, ...],
    format_name: str,
    has_tail: bool,
    tuning: Tuning,
) -> None:
    """y[T,N] = x[T,K] w[N,K]^T; what the format does not read may be any tensor."""
    (num_rows, width), num_outputs = x.shape, y.shape[1]
    assert x.element_size() == 2 and x.stride(0) % 8 == 0 and width % 16 == 0
    sizes = (
        num_rows,
        num_coded,
        num_outputs,
        width // 16,
        x.stride(0) // 8,
        y.stride(0),
        *starts,
        *(num_outputs,) * (MAX_PARTS - 1 - len(starts)),
    )
    options = launch_options(early=bool(tuning.early))
    if num_rows <= tuning.few:
        held = rows_at_once(num_rows)
        constants = launch_constants(
            held,
            format_name=format_name,
            tail=has_tail,
            outputs=tuning.outputs,
            unroll=tuning.unroll,
            early=bool(tuning.early),
        )
        assert not has_tail or num_coded % outputs_at_once(held, tuning.outputs) == 0
        grid = launch_grid(num_rows, num_outputs, outputs=tuning.outputs)
        multiply_rows[grid](x, codes, scales, tail, y, *sizes, **constants, num_warps=1, **options)
    else:
        constants = tile_constants(
            format_name=format_name,
            tail=has_tail,
            tile_outputs=tuning.tile_outputs,
            block=tuning.block,
            stages=tuning.stages,
            early=bool(tuning.early),
        )
        assert not has_tail or num_coded % tuning.tile_outputs == 0
        grid = tile_grid(num_rows, num_outputs, tile_outputs=tuning.tile_outputs)
        multiply_tiles[grid](
            x, codes, scales, tail, y, *sizes, **constants, num_warps=tuning.tile_warps, **options
        )
