"""gdn in chunks of at most 64 rows: matrix products inside a chunk, one state update a chunk (facts/models.md 2.5).

A chunk ends where a position is a multiple of 64, and where the segment's shadow state is due, so a run that was cut
at such a place computes the same sums.

Legend: R rows of a segment, C channels, K conv taps.
"""

import torch
from torch.nn.functional import silu

from firmtoken.runtime.kernels.batch import Batch, Segment
from firmtoken.runtime.kernels.gdn.chunk import prepare
from firmtoken.runtime.kernels.gdn.grid import make_grid
from firmtoken.runtime.kernels.gdn.parts import (
    Columns,
    Shape,
    for_value_heads,
    log_decay,
    take_apart,
    unit_queries_keys,
    write_output,
)

CHUNK = 64


def gdn(
    batch: Batch,
    *,
    u: torch.Tensor,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
    o: torch.Tensor,
    conv: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    norm: torch.Tensor,
    num_key_heads: int,
    num_value_heads: int,
    key_head_dim: int,
    value_head_dim: int,
    conv_kernel: int,
    eps: float,
) -> None:
    """o[T,Hv*Dv]; states of live slots in place, of shadow slots at page boundaries."""
    shape = Shape(
        num_key_heads=num_key_heads,
        num_value_heads=num_value_heads,
        key_head_dim=key_head_dim,
        value_head_dim=value_head_dim,
    )
    for segment in batch.segments:
        rows = slice(segment.first, segment.first + segment.rows)
        columns = take_apart(u[rows], shape)
        mixed = convolve(columns.qkv, conv, conv_state, segment)
        decay = log_decay(columns.a, a_log, dt_bias)
        heads = run_chunks(mixed, columns, decay, recurrent_state, segment, shape)
        write_output(heads, columns.z, norm, eps, o[rows])
    if batch.real_rows < batch.rows:
        o[batch.real_rows :].zero_()


def convolve(
    qkv: torch.Tensor, conv: torch.Tensor, conv_state: torch.Tensor, segment: Segment
) -> torch.Tensor:
    """silu of the causal convolution of qkv[R,C] with conv[C,K]; conv states in place."""
    taps = conv.shape[1]
    past = taps - 1
    window = torch.cat((conv_state[segment.live].t(), qkv))  # [K-1 + R, C]
    if segment.boundary:
        at_boundary = window[segment.boundary : segment.boundary + past]
        conv_state[segment.shadow].copy_(at_boundary.t())
    conv_state[segment.live].copy_(window[segment.rows :].t())
    mixed = window[past:] * conv[:, past]
    for tap in range(past):
        mixed.addcmul_(window[tap : tap + segment.rows], conv[:, tap])
    return silu(mixed)


def chunk_ends(segment: Segment) -> list[int]:
    """After how many rows of the segment each chunk ends."""
    first = CHUNK - segment.start % CHUNK
    ends = {*range(first, segment.rows, CHUNK), segment.rows}
    if segment.boundary:
        ends.add(segment.boundary)
    return sorted(ends)


def run_chunks(
    mixed: torch.Tensor,
    columns: Columns,
    decay: torch.Tensor,
    recurrent_state: torch.Tensor,
    segment: Segment,
    shape: Shape,
) -> torch.Tensor:
    """heads[R,Hv,Dv]; recurrent states in place."""
    ends = chunk_ends(segment)
    grid = make_grid(ends)
    queries, keys = (for_value_heads(x, shape) for x in unit_queries_keys(mixed, shape))
    values = mixed[:, 2 * shape.key_columns :].view(-1, shape.num_value_heads, shape.value_head_dim)
    chunks = prepare(
        queries=grid.pad(queries),
        keys=grid.pad(keys),
        values=grid.pad(values),
        strength=grid.pad(columns.b.sigmoid().unsqueeze(2)),
        decay=grid.pad(decay.unsqueeze(2)),
    )
    state = recurrent_state[segment.live]  # [Hv, Dk, Dv]
    outputs = []
    for index, end in enumerate(ends):
        outputs.append(chunks.advance(index, state))
        if end == segment.boundary:
            recurrent_state[segment.shadow].copy_(state)
    return grid.unpad(torch.stack(outputs))
