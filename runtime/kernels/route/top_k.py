"""The router for a few rows: logits, the k best experts and their weights in one launch (Triton, no torch).

A program is one warp: it makes the logits of a few experts for one row. Whoever arrives last of a row's programs reads
all its logits back and chooses; arrivals are counted on the device and set back to 0, so that a graph can be replayed.
The choice does not depend on who it is.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types, and its tuples grow while it is compiled.

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.early_start import start_next_after_last

COLUMNS = tl.constexpr(1024)
"""Columns of the hidden size at a time: 32 to a lane, in loads of 16 bytes of bf16."""
LOWEST = tl.constexpr(-(2**31))


@triton.jit
def route_rows(
    h_ptr,
    router_ptr,
    bias_ptr,
    num_rows_ptr,
    logits_ptr,
    arrived_ptr,
    ids_ptr,
    wts_ptr,
    HIDDEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    SIGMOID: tl.constexpr,
    AT_ONCE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """ids[T, CHOSEN] int32 and wts[T, CHOSEN] fp32 from h[T, HIDDEN] and router[EXPERTS, HIDDEN], of any float type.

    Softmax over all experts, the largest, divided by their sum; or, where SIGMOID, those of the largest
    sigmoid(logit) + bias (fp32 [EXPERTS]), weighted by their sigmoids over the sum of those. Of equals the lower id.
    Rows from *num_rows_ptr on get id -1 and weight 0. Scratch: logits fp32 [T, EXPERTS], arrived int32 [T], 0 between
    launches. Program (AT_ONCE experts, row). EARLY (`early_start.py`): all but h must be older than the launch before.
    """
    row = tl.program_id(1)
    wide_row = row.to(tl.int64)
    place = tl.arange(0, triton.next_power_of_2(CHOSEN))
    ids_at = ids_ptr + wide_row * CHOSEN + place
    wts_at = wts_ptr + wide_row * CHOSEN + place
    if row < tl.load(num_rows_ptr):
        expert = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
        router = load_router(router_ptr, expert, HIDDEN, EXPERTS)
        if EARLY:
            start_next_after_last()
        sums = tl.zeros((AT_ONCE, COLUMNS), tl.float32)
        for step in tl.static_range(0, HIDDEN, COLUMNS):
            column = step + tl.arange(0, COLUMNS)
            h = tl.load(h_ptr + wide_row * HIDDEN + column, mask=column < HIDDEN, other=0.0)
            sums += router[step // COLUMNS].to(tl.float32) * h.to(tl.float32)[None, :]
        row_ptr = logits_ptr + wide_row * EXPERTS
        tl.store(row_ptr + expert, tl.sum(sums, axis=1), mask=expert < EXPERTS)
        if is_last(arrived_ptr + row):
            ids, weights = choose(row_ptr, bias_ptr, place, EXPERTS, CHOSEN, SIGMOID)
            tl.store(ids_at, ids, mask=place < CHOSEN)
            tl.store(wts_at, weights, mask=place < CHOSEN)
    else:
        if EARLY:
            start_next_after_last()
        if tl.program_id(0) == 0:
            tl.store(ids_at, -1, mask=place < CHOSEN)
            tl.store(wts_at, 0.0, mask=place < CHOSEN)


@triton.jit
def load_router(router_ptr, expert, HIDDEN: tl.constexpr, EXPERTS: tl.constexpr):
    """Rows of the router, COLUMNS of them a tensor: loaded before there is a row to multiply with them."""
    weight_row = router_ptr + expert.to(tl.int64)[:, None] * HIDDEN
    tiles = ()
    for step in tl.static_range(0, HIDDEN, COLUMNS):
        column = step + tl.arange(0, COLUMNS)[None, :]
        there = (column < HIDDEN) & (expert < EXPERTS)[:, None]
        tiles += (tl.load(weight_row + column, mask=there, other=0.0),)
    return tiles


@triton.jit
def is_last(arrived_ptr):
    """Whether all other programs of axis 0 have come here, with what they stored; then the count is back at 0."""
    tl.debug_barrier()  # every lane's stores before the arrival that publishes them
    last = tl.atomic_add(arrived_ptr, 1, sem="acq_rel") == tl.num_programs(0) - 1
    if last:
        tl.store(arrived_ptr, 0)
    return last


@triton.jit
def choose(
    row_ptr, bias_ptr, place, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, SIGMOID: tl.constexpr
):
    """ids int32 and weights fp32 of the best, most wanted first, by `place`.

    Scores are compared as integers in their order, which a card reduces over a warp in one instruction.
    """
    expert = tl.arange(0, triton.next_power_of_2(EXPERTS))
    known = expert < EXPERTS
    # Not through L1: the logits come from other programs.
    score = tl.load(row_ptr + expert, mask=known, other=0.0, cache_modifier=".cg")
    if SIGMOID:
        score = tl.sigmoid(score) + tl.load(bias_ptr + expert, mask=known, other=0.0)
    order = tl.where(known, ordered(score.to(tl.int32, bitcast=True)), LOWEST)
    ids = tl.zeros(place.shape, tl.int32)
    orders = tl.full(place.shape, LOWEST, tl.int32)
    for rank in tl.static_range(CHOSEN):
        best = tl.max(order, axis=0)
        which = tl.min(tl.where(order == best, expert, EXPERTS - 1), axis=0)
        order = tl.where(expert == which, LOWEST, order)
        ids = tl.where(place == rank, which, ids)
        orders = tl.where(place == rank, best, orders)
    chosen = place < CHOSEN
    if SIGMOID:
        logit = tl.load(row_ptr + ids, mask=chosen, other=0.0, cache_modifier=".cg")
        weights = tl.where(chosen, tl.sigmoid(logit), 0.0)
    else:
        logit = ordered(orders).to(tl.float32, bitcast=True)
        largest = tl.max(tl.where(chosen, logit, float("-inf")), axis=0)
        weights = tl.where(chosen, tl.exp(logit - largest), 0.0)
    return ids, weights / tl.sum(weights, axis=0)


@triton.jit
def ordered(bits):
    """Bits of fp32 as int32 that compare as the numbers do, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def route_builds(
    launch: Launch, *, num_experts_per_token: int, experts_at_once: int, early: int
) -> tuple[Build, ...]:
    """The one form: by sigmoids where there is a bias."""
    return (
        Build(
            name="experts of a row",
            function=route_rows,
            arguments={"h_ptr": launch.pointer("h"), **route_arguments(launch)},
            constants=route_constants(
                launch,
                num_experts_per_token=num_experts_per_token,
                experts_at_once=experts_at_once,
                early=early,
            ),
            num_warps=1,
            grid=(-(-launch.outputs("router") // experts_at_once), launch.num_rows),
        ),
    )


def route_arguments(launch: Launch) -> dict[str, str]:
    """Types of all arguments after h. Without a bias its pointer is that of the logits."""
    return {
        "router_ptr": launch.pointer("router"),
        "bias_ptr": "*fp32",
        "num_rows_ptr": "*i32",
        "logits_ptr": "*fp32",
        "arrived_ptr": "*i32",
        "ids_ptr": "*i32",
        "wts_ptr": "*fp32",
    }


def route_constants(
    launch: Launch, *, num_experts_per_token: int, experts_at_once: int, early: int
) -> dict[str, int | bool]:
    """Constants of `route_rows` and `norm_route_rows`."""
    return {
        "HIDDEN": launch.columns("h"),
        "EXPERTS": launch.outputs("router"),
        "CHOSEN": num_experts_per_token,
        "SIGMOID": "bias" in launch.operands,
        "AT_ONCE": experts_at_once,
        "EARLY": bool(early),
    }
