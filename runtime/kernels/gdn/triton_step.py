"""gdn where each sequence has one row, launched on a GPU: convolution and step, then norm and gate."""

import torch

from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.early_start import launch_options
from firmtoken.runtime.kernels.gdn.head_steps import (
    FINISH_WARPS,
    finish_heads,
    launch_constants,
    step_columns,
)


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
    num_key_heads: int,
    num_value_heads: int,
    key_head_dim: int,
    value_head_dim: int,
    conv_kernel: int,
    eps: float,
    columns: int,
    warps: int,
    early: bool,
) -> None:
    """o[T,Hv*Dv]; states of live slots in place, of shadow slots at page boundaries; states contiguous.

    Head sizes are powers of two, row t is sequence t, slots of different sequences differ.
    """
    assert conv_state.is_contiguous() and recurrent_state.is_contiguous() and conv.is_contiguous()
    num_rows = u.shape[0]
    shape = launch_constants(
        num_key_heads=num_key_heads,
        num_value_heads=num_value_heads,
        key_head_dim=key_head_dim,
        value_head_dim=value_head_dim,
        conv_kernel=conv_kernel,
    )
    slots = (rows.sequences, rows.live, rows.shadow, rows.boundary)
    step_columns[(value_head_dim // columns, num_value_heads, num_rows)](
        u,
        conv_state,
        recurrent_state,
        o,
        conv,
        a_log,
        dt_bias,
        *slots,
        u.stride(0),
        o.stride(0),
        **shape,
        COLUMNS=columns,
        EARLY=early,
        num_warps=warps,
        **launch_options(early=early),
    )
    finish_heads[(num_value_heads, num_rows)](
        u,
        conv_state,
        o,
        norm,
        *slots,
        u.stride(0),
        o.stride(0),
        eps,
        **shape,
        EARLY=early,
        num_warps=FINISH_WARPS,
        **launch_options(early=early),
    )
