"""One row of the gated delta net for each sequence: the two Triton functions that `gdn` launches in decode.

Columns of a value head's state do not depend on one another, so `step_columns` has a program for each block of them, on
all processors; each makes the head's q and k anew from the convolution's state, which must stay until all have
read it. `finish_heads` moves that state on, and norms and gates the heads. With S the state before the step,

    d = beta (v - alpha S^T k)        o = alpha S^T q + (k . q) d        S <- alpha S + k d^T

which is the contract's step with both products taken of the old state, so that one pass over it serves both. Between
the launches a head's output is as wide as `o`, as it is in transformers.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.early_start import start_next_after_last

UNIT_EPS = tl.constexpr(1e-6)
FINISH_WARPS = 4
INTEGERS = ("u_stride", "o_stride")


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def step_columns(  # noqa: PLR0915  a kernel is one function (design/STYLE.md)
    u_ptr,
    conv_state_ptr,
    state_ptr,
    o_ptr,
    conv_ptr,
    a_log_ptr,
    dt_bias_ptr,
    sequences_ptr,
    live_ptr,
    shadow_ptr,
    boundary_ptr,
    u_stride,
    o_stride,
    KEY_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (b, h, t): the b-th COLUMNS columns of value head h, row t, which is its sequence's number too.

    u, conv, conv state bf16; state fp32; o of any float type. Rows without a sequence are left out. EARLY
    (`early_start.py`): all but u must be older than the launch before.
    """
    head = tl.program_id(1)
    row = tl.program_id(2)
    # Slots are asked for beside the sequence, not after it: in decode both have the row's number.
    sequence = tl.load(sequences_ptr + row)
    live = tl.load(live_ptr + row).to(tl.int64)
    shadow = tl.load(shadow_ptr + row).to(tl.int64)
    boundary = tl.load(boundary_ptr + row)
    if sequence >= 0:
        KEY_COLUMNS: tl.constexpr = KEY_HEADS * KEY_DIM
        VALUE_HEADS: tl.constexpr = KEY_HEADS * SHARE
        CHANNELS: tl.constexpr = 2 * KEY_COLUMNS + VALUE_HEADS * VALUE_DIM
        B: tl.constexpr = CHANNELS + VALUE_HEADS * VALUE_DIM
        A: tl.constexpr = B + VALUE_HEADS
        HEAD: tl.constexpr = KEY_DIM * VALUE_DIM
        in_key = tl.arange(0, KEY_DIM)
        in_value = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
        at = state_ptr + head * HEAD + in_key[:, None] * VALUE_DIM + in_value[None, :]
        state = tl.load(at + live * (VALUE_HEADS * HEAD))
        window_ptr = conv_state_ptr + live * (CHANNELS * (TAPS - 1))
        q_channel = (head // SHARE) * KEY_DIM + in_key
        k_channel = KEY_COLUMNS + q_channel
        v_channel = 2 * KEY_COLUMNS + head * VALUE_DIM + in_value
        query_past, query_tap = _past(window_ptr, conv_ptr, q_channel, TAPS)
        key_past, key_tap = _past(window_ptr, conv_ptr, k_channel, TAPS)
        value_past, value_tap = _past(window_ptr, conv_ptr, v_channel, TAPS)
        bias = tl.load(dt_bias_ptr + head).to(tl.float32)
        speed = tl.exp(tl.load(a_log_ptr + head).to(tl.float32))
        if EARLY:
            start_next_after_last()

        u_row_ptr = u_ptr + row.to(tl.int64) * u_stride
        query = _convolve(u_row_ptr + q_channel, query_past, query_tap)
        key = _convolve(u_row_ptr + k_channel, key_past, key_tap)
        value = _convolve(u_row_ptr + v_channel, value_past, value_tap)
        strength = tl.sigmoid(tl.load(u_row_ptr + B + head).to(tl.float32))
        rate = tl.load(u_row_ptr + A + head).to(tl.float32) + bias
        decay = tl.exp(-speed * softplus(rate))

        # Lengths are scalars: they go onto the sums, and the vectors need not wait for them.
        key_scale = tl.rsqrt(tl.sum(key * key, axis=0) + UNIT_EPS)
        query_scale = tl.rsqrt(tl.sum(query * query, axis=0) + UNIT_EPS) * (KEY_DIM**-0.5)
        agreement = tl.sum(query * key, axis=0) * key_scale * query_scale
        read = tl.sum(state * key[:, None], axis=0) * (decay * key_scale)
        asked = tl.sum(state * query[:, None], axis=0) * (decay * query_scale)
        change = strength * (value - read)
        out = asked + agreement * change
        state = state * decay + key[:, None] * (key_scale * change)[None, :]
        tl.store(at + live * (VALUE_HEADS * HEAD), state)
        if boundary > 0:
            tl.store(at + shadow * (VALUE_HEADS * HEAD), state)
        o_at = o_ptr + row.to(tl.int64) * o_stride + head * VALUE_DIM + in_value
        tl.store(o_at, out.to(o_ptr.dtype.element_ty))
    elif EARLY:
        start_next_after_last()


@triton.jit(do_not_specialize=INTEGERS)
def finish_heads(
    u_ptr,
    conv_state_ptr,
    o_ptr,
    norm_ptr,
    sequences_ptr,
    live_ptr,
    shadow_ptr,
    boundary_ptr,
    u_stride,
    o_stride,
    eps,
    KEY_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TAPS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (h, t): norm and gate of value head h of row t, and its share of the convolution's state.

    A row without a sequence gets zeros and touches no state. EARLY (`early_start.py`): all but o must be older than the
    launch before, which reads the convolution's state.
    """
    VALUE_HEADS: tl.constexpr = KEY_HEADS * SHARE
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    OWN: tl.constexpr = CHANNELS // VALUE_HEADS
    OWN_BLOCK: tl.constexpr = triton.next_power_of_2(OWN)
    head = tl.program_id(0)
    row = tl.program_id(1)
    sequence = tl.load(sequences_ptr + row)
    live = tl.load(live_ptr + row).to(tl.int64)
    shadow = tl.load(shadow_ptr + row).to(tl.int64)
    boundary = tl.load(boundary_ptr + row)
    in_value = tl.arange(0, VALUE_DIM)
    u_row_ptr = u_ptr + row.to(tl.int64) * u_stride
    o_at = o_ptr + row.to(tl.int64) * o_stride + head * VALUE_DIM + in_value
    gate = tl.load(u_row_ptr + CHANNELS + head * VALUE_DIM + in_value).to(tl.float32)
    norm = tl.load(norm_ptr + in_value).to(tl.float32)
    own = tl.arange(0, OWN_BLOCK)
    channel = head * OWN + own
    newest = tl.load(u_row_ptr + channel, mask=own < OWN)
    window = ()
    for tap in tl.static_range(1, TAPS - 1):
        at = conv_state_ptr + live * (CHANNELS * (TAPS - 1)) + channel * (TAPS - 1) + tap
        window += (tl.load(at, mask=own < OWN),)
    window += (newest.to(conv_state_ptr.dtype.element_ty),)
    if EARLY:
        start_next_after_last()
    out = tl.load(o_at).to(tl.float32)
    scale = tl.rsqrt(tl.sum(out * out, axis=0) / VALUE_DIM + eps)
    out = tl.where(sequence >= 0, out * scale * norm * gate * tl.sigmoid(gate), 0.0)
    # Several threads may hold a number: all have read it before one of them writes it.
    tl.debug_barrier()
    tl.store(o_at, out.to(o_ptr.dtype.element_ty))
    if sequence >= 0:
        for tap in tl.static_range(TAPS - 1):
            at = conv_state_ptr + channel * (TAPS - 1) + tap
            tl.store(at + live * (CHANNELS * (TAPS - 1)), window[tap], mask=own < OWN)
            if boundary > 0:
                tl.store(at + shadow * (CHANNELS * (TAPS - 1)), window[tap], mask=own < OWN)


@triton.jit
def _past(window_ptr, conv_ptr, channel, TAPS: tl.constexpr):
    """The convolution's sum over what came before, and its weight of what comes now, fp32."""
    sums = tl.zeros(channel.shape, tl.float32)
    for tap in tl.static_range(TAPS - 1):
        past = tl.load(window_ptr + channel * (TAPS - 1) + tap).to(tl.float32)
        sums += past * tl.load(conv_ptr + channel * TAPS + tap).to(tl.float32)
    return sums, tl.load(conv_ptr + channel * TAPS + TAPS - 1).to(tl.float32)


@triton.jit
def _convolve(u_at, past, tap):
    """silu of the convolution of the channels, fp32."""
    mixed = past + tl.load(u_at).to(tl.float32) * tap
    return mixed * tl.sigmoid(mixed)


@triton.jit
def softplus(x):
    """log(1 + e^x), without overflow."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


def gdn_builds(
    launch: Launch,
    *,
    num_key_heads: int,
    num_value_heads: int,
    key_head_dim: int,
    value_head_dim: int,
    conv_kernel: int,
    eps: float,
    columns: int,
    warps: int,
    early: int,
) -> tuple[Build, ...]:
    """Both functions; `eps` is an argument."""
    shape = launch_constants(
        num_key_heads=num_key_heads,
        num_value_heads=num_value_heads,
        key_head_dim=key_head_dim,
        value_head_dim=value_head_dim,
        conv_kernel=conv_kernel,
    )
    activations = {"u_ptr": "*bf16", "conv_state_ptr": "*bf16"}
    slots = dict.fromkeys(("sequences_ptr", "live_ptr", "shadow_ptr", "boundary_ptr"), "*i32")
    strides = dict.fromkeys(INTEGERS, "i32")
    step = Build(
        name="step",
        function=step_columns,
        arguments={
            **activations,
            "state_ptr": "*fp32",
            "o_ptr": "*bf16",
            "conv_ptr": "*bf16",
            "a_log_ptr": "*fp32",
            "dt_bias_ptr": "*fp32",
            **slots,
            **strides,
        },
        constants={**shape, "COLUMNS": columns, "EARLY": bool(early)},
        num_warps=warps,
        grid=(value_head_dim // columns, num_value_heads, launch.num_rows),
    )
    finish = Build(
        name="finish",
        function=finish_heads,
        arguments={
            **activations,
            "o_ptr": "*bf16",
            "norm_ptr": "*fp32",
            **slots,
            **strides,
            "eps": "fp32",
        },
        constants={**shape, "EARLY": bool(early)},
        num_warps=FINISH_WARPS,
        grid=(num_value_heads, launch.num_rows),
    )
    return step, finish


def launch_constants(
    *,
    num_key_heads: int,
    num_value_heads: int,
    key_head_dim: int,
    value_head_dim: int,
    conv_kernel: int,
) -> dict[str, int]:
    """Constants of the function for this shape of layer."""
    return {
        "KEY_HEADS": num_key_heads,
        "SHARE": num_value_heads // num_key_heads,
        "KEY_DIM": key_head_dim,
        "VALUE_DIM": value_head_dim,
        "TAPS": conv_kernel,
    }
