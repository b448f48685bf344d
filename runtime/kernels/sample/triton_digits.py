"""sample launched on a GPU: no sort, no host between steps; the same launches whatever the rows ask for."""

from dataclasses import dataclass

import torch
import triton

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.sample.device_draws import DeviceDraws
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


def sample(
    rows: DeviceRows | None,
    *,
    logits: torch.Tensor,
    tokens: torch.Tensor,
    draws: DeviceDraws,
    workspace: SampleWorkspace,
    chunk: int,
    warps: int,
) -> None:
    """tokens int64 [S] from logits[S,V] (fp32 or bf16), row s as `draws` says; `chunk` is a power of two.

    Weights are fp32 here and fp64 in the reference: where the two differ by more than the gap between u and a
    boundary of an interval, so may the token.
    """
    num_rows, width = logits.shape
    num_chunks = -(-width // chunk)
    constants = {"CHUNK": chunk, "num_warps": warps}
    sizes = {"CHUNKS": triton.next_power_of_2(num_chunks), **constants}
    stride = logits.stride(0)
    grid = (num_chunks, num_rows)
    find_peaks[grid](logits, workspace.peaks, workspace.ids, width, stride, num_chunks, **constants)
    for launch in range(2 * DIGITS):
        narrow[grid](
            logits,
            workspace.peaks,
            workspace.sums,
            workspace.marks,
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
        workspace.peaks,
        workspace.sums,
        workspace.marks,
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
        workspace.peaks,
        workspace.ids,
        workspace.sums,
        workspace.marks,
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
