"""gdn row by row: one step for all sequences where each has one row, else a step a row.

Legend: S sequences of a step, C channels, K conv taps.
"""

import torch
from torch.nn.functional import silu

from firmtoken.runtime.kernels.batch import Batch, Segment
from firmtoken.runtime.kernels.gdn.parts import (
    Shape,
    for_value_heads,
    log_decay,
    take_apart,
    unit_queries_keys,
    write_output,
)


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
    step = Step(
        shape=Shape(
            num_key_heads=num_key_heads,
            num_value_heads=num_value_heads,
            key_head_dim=key_head_dim,
            value_head_dim=value_head_dim,
        ),
        conv=conv,
        a_log=a_log,
        dt_bias=dt_bias,
        norm=norm,
        eps=eps,
    )
    segments = batch.segments
    if all(segment.rows == 1 for segment in segments):
        one_row_each(step, segments, u, o, conv_state, recurrent_state)
    else:
        for segment in segments:
            row_by_row(step, segment, u, o, conv_state, recurrent_state)
    if batch.real_rows < batch.rows:
        o[batch.real_rows :].zero_()


def one_row_each(
    step: "Step",
    segments: tuple[Segment, ...],
    u: torch.Tensor,
    o: torch.Tensor,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
) -> None:
    """A decode step: rows 0..S-1 belong to one sequence each."""
    count = len(segments)
    if count == 1:
        live = segments[0].live
        step.run(u[:1], o[:1], conv_state[live : live + 1], recurrent_state[live : live + 1])
    elif count:
        slots = torch.tensor([segment.live for segment in segments])
        conv_states = conv_state.index_select(0, slots)
        recurrent_states = recurrent_state.index_select(0, slots)
        step.run(u[:count], o[:count], conv_states, recurrent_states)
        conv_state.index_copy_(0, slots, conv_states)
        recurrent_state.index_copy_(0, slots, recurrent_states)
    for segment in segments:
        if segment.boundary:
            keep_shadow(segment, conv_state, recurrent_state)


def row_by_row(
    step: "Step",
    segment: Segment,
    u: torch.Tensor,
    o: torch.Tensor,
    conv_state: torch.Tensor,
    recurrent_state: torch.Tensor,
) -> None:
    """Any number of rows of one sequence."""
    live = slice(segment.live, segment.live + 1)
    for done in range(segment.rows):
        row = slice(segment.first + done, segment.first + done + 1)
        step.run(u[row], o[row], conv_state[live], recurrent_state[live])
        if done + 1 == segment.boundary:
            keep_shadow(segment, conv_state, recurrent_state)


def keep_shadow(segment: Segment, conv_state: torch.Tensor, recurrent_state: torch.Tensor) -> None:
    """The live slot's states as they are now, to the shadow slot."""
    for state in (conv_state, recurrent_state):
        state[segment.shadow].copy_(state[segment.live])


class Step:
    """One row of each of S sequences, with the layer's weights bound."""

    def __init__(
        self,
        *,
        shape: Shape,
        conv: torch.Tensor,
        a_log: torch.Tensor,
        dt_bias: torch.Tensor,
        norm: torch.Tensor,
        eps: float,
    ) -> None:
        self.shape = shape
        self.conv = conv
        self.a_log = a_log
        self.dt_bias = dt_bias
        self.norm = norm
        self.eps = eps

    def run(
        self,
        u: torch.Tensor,
        o: torch.Tensor,
        conv_states: torch.Tensor,
        recurrent_states: torch.Tensor,
    ) -> None:
        """u, o [S, ...]; conv_states[S,C,K-1] and recurrent_states[S,Hv,Dk,Dv] in place."""
        shape = self.shape
        columns = take_apart(u, shape)
        window = torch.cat((conv_states, columns.qkv.unsqueeze(2)), dim=2)  # [S, C, K]
        conv_states.copy_(window[:, :, 1:])
        mixed = silu((window * self.conv).sum(dim=2))
        queries, keys = (
            for_value_heads(x, shape).flatten(0, 1) for x in unit_queries_keys(mixed, shape)
        )  # [S*Hv, Dk]
        values = mixed[:, 2 * shape.key_columns :].reshape(-1, 1, shape.value_head_dim)
        decay = log_decay(columns.a, self.a_log, self.dt_bias).exp_().view(-1, 1, 1)
        strength = columns.b.sigmoid().view(-1, 1, 1)
        states = recurrent_states.view(-1, shape.key_head_dim, shape.value_head_dim)
        states.mul_(decay)
        change = (values - torch.bmm(keys.unsqueeze(1), states)).mul_(strength)  # [S*Hv, 1, Dv]
        states.baddbmm_(keys.unsqueeze(2), change)
        heads = torch.bmm(queries.unsqueeze(1), states)
        by_row = heads.view(-1, shape.num_value_heads, shape.value_head_dim)
        write_output(by_row, columns.z, self.norm, self.eps, o)
