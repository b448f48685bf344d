"""gdn for many rows of a few sequences, launched on a GPU: rows convolved, chunks prepared, states advanced,
heads read.

Legend: N chunks of all sequences at most.
"""

from dataclasses import dataclass

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.gdn.chunk_builds import (
    CHUNK_ROWS,
    state_constants,
    without_taps,
)
from firmtoken.runtime.kernels.gdn.chunk_heads import read_chunks
from firmtoken.runtime.kernels.gdn.chunk_rows import convolve_chunks, prepare_chunks
from firmtoken.runtime.kernels.gdn.chunk_states import advance_states
from firmtoken.runtime.kernels.gdn.head_steps import launch_constants
from firmtoken.runtime.kernels.row_blocks import most_blocks


def gdn(
    rows: DeviceRows,
    *,
    u: torch.Tensor,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
    o: torch.Tensor,
    conv: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm: torch.Tensor,
    workspace: torch.Tensor,
    num_key_heads: int,
    num_value_heads: int,
    key_head_dim: int,
    value_head_dim: int,
    conv_kernel: int,
    eps: float,
    sequences: int,
    columns: int,
    stages: int,
    convolve_warps: int,
    prepare_warps: int,
    state_warps: int,
    read_warps: int,
) -> None:
    """o[T,Hv*Dv]; states of live slots in place, of shadow slots at page boundaries; rows and states contiguous.

    Head sizes are powers of two of at least 16, slots of different sequences differ, rows of a sequence are those from
    its first row to that of the next. `workspace`: fp32, `_gdn_chunks` of `compiler/workspaces.py` has its bytes; what
    it holds need not last. `sequences`: a power of two, at least those of `rows`.
    """
    assert conv_state.is_contiguous() and recurrent_state.is_contiguous() and conv.is_contiguous()
    assert u.is_contiguous() and o.is_contiguous()
    num_rows, num_sequences = u.shape[0], rows.live.shape[0]
    # One stage was an illegal access on an H200 (Triton 3.6.0) when launches followed closely: NOTES.md.
    assert stages > 1 and num_sequences <= sequences and u.numel() < 2**31, (
        "elements of rows are counted in int32"
    )
    shape = launch_constants(
        num_key_heads=num_key_heads,
        num_value_heads=num_value_heads,
        key_head_dim=key_head_dim,
        value_head_dim=value_head_dim,
        conv_kernel=conv_kernel,
    )
    chunks = most_blocks(num_rows, num_sequences, CHUNK_ROWS, aligned=True)
    scratch = _take_apart(
        workspace,
        u.dtype,
        totals=num_value_heads * num_rows,
        keys=num_rows * num_key_heads * key_head_dim,
        read=num_rows * num_value_heads * key_head_dim,
        values=num_rows * num_value_heads * value_head_dim,
        states=chunks * num_value_heads * key_head_dim * value_head_dim,
    )
    by_chunk = (num_value_heads, chunks)
    convolve_chunks[(2 * num_key_heads + num_value_heads, chunks)](
        u,
        conv_state,
        conv,
        scratch.queries,
        scratch.keys,
        scratch.values,
        rows.first_rows,
        rows.starts,
        rows.live,
        num_sequences,
        **shape,
        SEQUENCES=sequences,
        num_warps=convolve_warps,
    )
    prepare_chunks[by_chunk](
        u,
        a_log,
        dt_bias,
        scratch.keys,
        scratch.values,
        scratch.totals,
        scratch.read,
        rows.first_rows,
        rows.starts,
        num_sequences,
        num_rows,
        **without_taps(shape),
        SEQUENCES=sequences,
        num_warps=prepare_warps,
    )
    advance_states[(value_head_dim // columns, num_value_heads, num_sequences)](
        u,
        conv_state,
        recurrent_state,
        scratch.totals,
        scratch.keys,
        scratch.read,
        scratch.values,
        scratch.states,
        rows.first_rows,
        rows.starts,
        rows.live,
        rows.shadow,
        rows.boundary,
        num_sequences,
        num_rows,
        **state_constants(shape, sequences, columns=columns, stages=stages),
        num_warps=state_warps,
    )
    read_chunks[by_chunk](
        u,
        o,
        norm,
        scratch.totals,
        scratch.queries,
        scratch.keys,
        scratch.values,
        scratch.states,
        rows.num_rows,
        rows.first_rows,
        rows.starts,
        num_sequences,
        num_rows,
        eps,
        **without_taps(shape),
        SEQUENCES=sequences,
        num_warps=read_warps,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scratch:
    """What lies between the launches; words and shapes as in `chunk_rows.py` and `chunk_states.py`."""

    totals: torch.Tensor
    queries: torch.Tensor
    keys: torch.Tensor
    read: torch.Tensor
    values: torch.Tensor
    states: torch.Tensor


def _take_apart(
    workspace: torch.Tensor,
    dtype: torch.dtype,
    *,
    totals: int,
    keys: int,
    read: int,
    values: int,
    states: int,
) -> _Scratch:
    """Views, from so many elements each; queries are as many as keys. The sums come last: the rest stays aligned."""
    sizes = [states, keys, keys, read, values]
    typed = workspace.view(dtype)
    assert typed.numel() >= sum(sizes) + totals * 4 // dtype.itemsize, "the plan sizes it"
    views = torch.split(typed[: sum(sizes)], sizes)
    sums = typed[sum(sizes) :].view(torch.float32)[:totals]
    return _Scratch(
        totals=sums,
        states=views[0],
        queries=views[1],
        keys=views[2],
        read=views[3],
        values=views[4],
    )
