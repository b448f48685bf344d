"""sample launched on a GPU: no sort, no host between steps; the same launches whatever the rows ask for."""

from dataclasses import dataclass

import torch
import triton

from firmtoken.compiler.tensor_bytes import align_up
from firmtoken.compiler.workspaces import ARRAY_ALIGN
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.early_start import launch_options
from firmtoken.runtime.kernels.sample.digits import DIGITS, find_peaks, keep, narrow, pick
from firmtoken.runtime.kernels.sample.no_token import NO_TOKEN


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleWorkspace:
    """What the launches hand on; need not last. C = ceil(V / chunk)."""

    peaks: torch.Tensor
    """fp32 [S, C]"""
    ids: torch.Tensor
    """int32 [S, C]"""
    sums: torch.Tensor
    """int64 [2, S, C, 16]"""
    marks: torch.Tensor
    """int64 [2, S, 4]"""


def cut_workspace(workspace: torch.Tensor, num_rows: int, num_chunks: int) -> SampleWorkspace:
    """Its tensors, one after the other, in bytes that begin at a multiple of 16."""
    numbers = workspace.view(torch.int64)
    sums, marks = 2 * num_rows * num_chunks * 16, 2 * num_rows * 4
    rest = numbers[sums + marks :].view(torch.int32)
    part = num_rows * num_chunks
    ids = align_up(part * 4, ARRAY_ALIGN) // 4
    return SampleWorkspace(
        sums=numbers[:sums].view(2, num_rows, num_chunks, 16),
        marks=numbers[sums : sums + marks].view(2, num_rows, 4),
        peaks=rest[:part].view(torch.float32).view(num_rows, num_chunks),
        ids=rest[ids : ids + part].view(num_rows, num_chunks),
    )


def sample(
    rows: DeviceRows,
    *,
    logits: torch.Tensor,
    tokens: torch.Tensor,
    workspace: torch.Tensor,
    chunk: int,
    warps: int,
    early: bool,
) -> None:
    """tokens int64 [S] from logits[S,V] (fp32 or bf16), row s as `rows.draws` says; `chunk` is a power of two.

    Weights are fp32 here and fp64 in the reference: where the two differ by more than the gap between u and a
    boundary of an interval, so may the token.
    """
    num_rows, width = logits.shape
    num_chunks = -(-width // chunk)
    draws, scratch = rows.draws, cut_workspace(workspace, num_rows, num_chunks)
    assert draws is not None
    constants = {
        "CHUNK": chunk,
        "EARLY": early,
        "num_warps": warps,
        **launch_options(early=early),
    }
    sizes = {"CHUNKS": triton.next_power_of_2(num_chunks), **constants}
    stride = logits.stride(0)
    grid = (num_chunks, num_rows)
    find_peaks[grid](logits, scratch.peaks, scratch.ids, width, stride, num_chunks, **constants)
    for launch in range(2 * DIGITS):
        narrow[grid](
            logits,
            scratch.peaks,
            scratch.sums,
            scratch.marks,
            draws.temperature,
            draws.top_k,
            draws.top_p,
            width,
            stride,
            num_chunks,
            num_rows,
            launch % DIGITS,
            launch,
            WEIGHTS=launch >= DIGITS,
            **sizes,
        )
    keep[grid](
        logits,
        scratch.peaks,
        scratch.sums,
        scratch.marks,
        draws.temperature,
        draws.top_k,
        draws.top_p,
        draws.min_p,
        width,
        stride,
        num_chunks,
        num_rows,
        **sizes,
    )
    pick[(num_rows,)](
        logits,
        scratch.peaks,
        scratch.ids,
        scratch.sums,
        scratch.marks,
        tokens,
        draws.temperature,
        draws.min_p,
        draws.seed,
        draws.position,
        width,
        stride,
        num_chunks,
        NO_TOKEN=NO_TOKEN,
        **sizes,
    )
