"""Norm, rotation and page write of the heads of q, k and v: the function of `qk_norm_rope_kv` and `row_norm_rope_kv`.

A program has one head of one row: a query, a key, or a value. Bytes are few (Qwen3.6: 20 KB a row), a launch's own
cost is what is paid; so where the norm runs over all heads, each of them reads the row again.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

from dataclasses import dataclass
from math import log2

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.early_start import start_next_after_last
from firmtoken.runtime.kernels.head_rotation import angles, rotate_head, store_token

INTEGERS = ("qkv_stride", "q_stride")


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def write_heads(
    qkv_ptr,
    q_ptr,
    k_ptr,
    v_ptr,
    q_norm_ptr,
    k_norm_ptr,
    positions_ptr,
    token_slots_ptr,
    qkv_stride,
    q_stride,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROTARY: tl.constexpr,
    LOG2_THETA: tl.constexpr,
    GATED: tl.constexpr,
    WHOLE_ROW: tl.constexpr,
    CODED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """Program (h, t): head h of the q, k and v heads of row t.

    WHOLE_ROW: one norm over all heads of q, one over all of k. CODED: keys and values are e4m3fn, seen as uint8. EARLY
    (`early_start.py`): all but qkv must be older than the launch before.
    """
    head = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64)
    cosine, sine = angles(tl.load(positions_ptr + row), LOG2_THETA, WIDTH, ROTARY)
    token = tl.load(token_slots_ptr + row) * (KV_HEADS * WIDTH)
    if EARLY:
        start_next_after_last()
    column = tl.arange(0, WIDTH)
    STRIDE: tl.constexpr = 2 * WIDTH if GATED else WIDTH
    row_ptr = qkv_ptr + row * qkv_stride
    if head < Q_HEADS:
        x_ptr = row_ptr + head * STRIDE
        if WHOLE_ROW:
            scale = _unit(row_ptr, eps, Q_HEADS * WIDTH)
            norm_ptr = q_norm_ptr + head * WIDTH
        else:
            scale = _unit(x_ptr, eps, WIDTH)
            norm_ptr = q_norm_ptr
        turned = rotate_head(x_ptr, norm_ptr, scale, cosine, sine, WIDTH, ROTARY)
        tl.store(q_ptr + row * q_stride + head * WIDTH + column, turned.to(q_ptr.dtype.element_ty))
    else:
        keys_ptr = row_ptr + Q_HEADS * STRIDE
        if head < Q_HEADS + KV_HEADS:
            own = (head - Q_HEADS) * WIDTH
            if WHOLE_ROW:
                scale = _unit(keys_ptr, eps, KV_HEADS * WIDTH)
                norm_ptr = k_norm_ptr + own
            else:
                scale = _unit(keys_ptr + own, eps, WIDTH)
                norm_ptr = k_norm_ptr
            turned = rotate_head(keys_ptr + own, norm_ptr, scale, cosine, sine, WIDTH, ROTARY)
            store_token(k_ptr + token + own + column, turned, CODED)
        else:
            own = (head - Q_HEADS - KV_HEADS) * WIDTH
            value = tl.load(keys_ptr + KV_HEADS * WIDTH + own + column).to(tl.float32)
            store_token(v_ptr + token + own + column, value, CODED)


@triton.jit
def _unit(x_ptr, eps, COLUMNS: tl.constexpr):
    """1 / sqrt(mean(x^2) + eps)"""
    BLOCK: tl.constexpr = triton.next_power_of_2(COLUMNS)
    column = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + column, mask=column < COLUMNS, other=0.0).to(tl.float32)
    return tl.rsqrt(tl.sum(x * x, axis=0) / COLUMNS + eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """What of a layer the function is compiled for."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    gated: bool
    whole_row: bool

    @property
    def programs(self) -> int:
        """Heads of a row."""
        return self.num_q_heads + 2 * self.num_kv_heads

    def constants(self, *, coded: bool, early: bool) -> dict[str, int | float | bool]:
        """Constants of the function."""
        return {
            "Q_HEADS": self.num_q_heads,
            "KV_HEADS": self.num_kv_heads,
            "WIDTH": self.head_dim,
            "ROTARY": self.rotary_dim,
            "LOG2_THETA": log2(self.rope_theta),
            "GATED": self.gated,
            "WHOLE_ROW": self.whole_row,
            "CODED": coded,
            "EARLY": early,
        }


def qk_norm_builds(
    launch: Launch,
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    rope_theta: float,
    eps: float,
    gated: int,
    page_size: int,
    warps: int,
    early: int,
) -> tuple[Build, ...]:
    """The one form of `qk_norm_rope_kv`; `eps` is an argument, and pages do not show in what is compiled."""
    shape = HeadShape(
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=rope_theta,
        gated=bool(gated),
        whole_row=False,
    )
    return (_build(launch, shape, warps, early=bool(early)),)


def row_norm_builds(
    launch: Launch,
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
    rotary_dim: int,
    rope_theta: float,
    eps: float,
    page_size: int,
    warps: int,
    early: int,
) -> tuple[Build, ...]:
    """The one form of `row_norm_rope_kv`, as `qk_norm_builds`."""
    shape = HeadShape(
        num_q_heads=num_q_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rotary_dim=rotary_dim,
        rope_theta=rope_theta,
        gated=False,
        whole_row=True,
    )
    return (_build(launch, shape, warps, early=bool(early)),)


def _build(launch: Launch, shape: HeadShape, warps: int, *, early: bool) -> Build:
    coded = launch.format == "fp8"
    return Build(
        name="heads of a row",
        function=write_heads,
        arguments={
            "qkv_ptr": launch.pointer("qkv"),
            "q_ptr": launch.pointer("q"),
            **dict.fromkeys(("k_ptr", "v_ptr"), "*u8" if coded else f"*{launch.format}"),
            "q_norm_ptr": launch.pointer("q_norm"),
            "k_norm_ptr": launch.pointer("k_norm"),
            "positions_ptr": "*i32",
            "token_slots_ptr": "*i64",
            **dict.fromkeys(INTEGERS, "i32"),
            "eps": "fp32",
        },
        constants=shape.constants(coded=coded, early=early),
        num_warps=warps,
        grid=(shape.programs, launch.num_rows),
    )
