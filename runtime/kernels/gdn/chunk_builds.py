"""What the four launches of the chunked gated delta net are compiled to, and how their scratch is laid out."""

from firmtoken.runtime.kernels.builds import Build, Constants, Launch
from firmtoken.runtime.kernels.gdn.chunk_heads import READ_INTEGERS, read_chunks
from firmtoken.runtime.kernels.gdn.chunk_rows import (
    CONVOLVE_INTEGERS,
    PREPARE_INTEGERS,
    convolve_chunks,
    prepare_chunks,
)
from firmtoken.runtime.kernels.gdn.chunk_states import STATE_INTEGERS, advance_states
from firmtoken.runtime.kernels.gdn.head_steps import launch_constants
from firmtoken.runtime.kernels.row_blocks import most_blocks

CHUNK_ROWS = 64


def chunk_builds(
    launch: Launch,
    *,
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
) -> tuple[Build, ...]:
    """The four functions; `eps` is an argument."""
    shape = launch_constants(
        num_key_heads=num_key_heads,
        num_value_heads=num_value_heads,
        key_head_dim=key_head_dim,
        value_head_dim=value_head_dim,
        conv_kernel=conv_kernel,
    )
    chunks = most_blocks(launch.num_rows, sequences, CHUNK_ROWS, aligned=True)
    sums = {"totals_ptr": "*fp32"}
    cut = dict.fromkeys(("first_rows_ptr", "starts_ptr"), "*i32")
    convolve = Build(
        name="convolution",
        function=convolve_chunks,
        arguments={
            **dict.fromkeys(("u_ptr", "conv_state_ptr", "conv_ptr"), "*bf16"),
            **dict.fromkeys(("queries_ptr", "keys_ptr", "values_ptr"), "*bf16"),
            **cut,
            "live_ptr": "*i32",
            **dict.fromkeys(CONVOLVE_INTEGERS, "i32"),
        },
        constants={**shape, "SEQUENCES": sequences},
        num_warps=convolve_warps,
        grid=(2 * num_key_heads + num_value_heads, chunks),
    )
    prepare = Build(
        name="prepare",
        function=prepare_chunks,
        arguments={
            "u_ptr": "*bf16",
            **dict.fromkeys(("a_log_ptr", "dt_bias_ptr"), "*fp32"),
            **dict.fromkeys(("keys_ptr", "values_ptr"), "*bf16"),
            **sums,
            "read_ptr": "*bf16",
            **cut,
            **dict.fromkeys(PREPARE_INTEGERS, "i32"),
        },
        constants={**without_taps(shape), "SEQUENCES": sequences},
        num_warps=prepare_warps,
        grid=(num_value_heads, chunks),
    )
    advance = Build(
        name="states",
        function=advance_states,
        arguments={
            **dict.fromkeys(("u_ptr", "conv_state_ptr"), "*bf16"),
            "state_ptr": "*fp32",
            **sums,
            **dict.fromkeys(("keys_ptr", "read_ptr", "update_ptr", "states_ptr"), "*bf16"),
            **cut,
            **dict.fromkeys(("live_ptr", "shadow_ptr", "boundary_ptr"), "*i32"),
            **dict.fromkeys(STATE_INTEGERS, "i32"),
        },
        constants=state_constants(shape, sequences, columns=columns, stages=stages),
        num_warps=state_warps,
        grid=(value_head_dim // columns, num_value_heads, sequences),
    )
    read = Build(
        name="heads",
        function=read_chunks,
        arguments={
            **dict.fromkeys(("u_ptr", "o_ptr"), "*bf16"),
            "norm_ptr": "*fp32",
            **sums,
            **dict.fromkeys(("queries_ptr", "keys_ptr", "new_ptr", "states_ptr"), "*bf16"),
            "num_rows_ptr": "*i32",
            **cut,
            **dict.fromkeys(READ_INTEGERS, "i32"),
            "eps": "fp32",
        },
        constants={**without_taps(shape), "SEQUENCES": sequences},
        num_warps=read_warps,
        grid=(num_value_heads, chunks),
    )
    return convolve, prepare, advance, read


def state_constants(
    shape: dict[str, int], sequences: int, *, columns: int, stages: int
) -> Constants:
    """Constants of `advance_states`."""
    return {**shape, "SEQUENCES": sequences, "COLUMNS": columns, "STAGES": stages}


def without_taps(shape: dict[str, int]) -> dict[str, int]:
    """Of a launch that has no use for the convolution."""
    return {name: value for name, value in shape.items() if name != "TAPS"}
