"""The router for many rows: logits of a tile of rows on tensor cores, the k best experts and their weights (Triton).

A program has all experts of its rows, so that no logit leaves it. The choice is that of `top_k.py`: the sums differ in
their order only.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.route.top_k import LOWEST, ordered

INTEGERS = ("num_rows",)


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def route_tile(
    h_ptr,
    router_ptr,
    bias_ptr,
    num_rows_ptr,
    ids_ptr,
    wts_ptr,
    num_rows,
    HIDDEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    SIGMOID: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    """ids[T, CHOSEN] int32 and wts[T, CHOSEN] fp32 from h[T, HIDDEN] and router[EXPERTS, HIDDEN], as in `route_rows`.

    Program (i): the i-th ROWS rows. Rows from *num_rows_ptr on get id -1 and weight 0. BLOCK columns at a time.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there = row < num_rows
    expert = tl.arange(0, triton.next_power_of_2(EXPERTS))
    known = expert < EXPERTS
    logits = tl.zeros((ROWS, expert.shape[0]), tl.float32)
    for step in tl.range(0, HIDDEN, BLOCK, num_stages=STAGES):
        column = step + tl.arange(0, BLOCK)
        inside = column < HIDDEN
        h = tl.load(
            h_ptr + row.to(tl.int64)[:, None] * HIDDEN + column[None, :],
            mask=there[:, None] & inside[None, :],
            other=0.0,
        )
        router = tl.load(
            router_ptr + expert[None, :] * HIDDEN + column[:, None],
            mask=known[None, :] & inside[:, None],
            other=0.0,
        )
        logits = tl.dot(h.to(router.dtype), router, logits, input_precision="tf32x3")
    place = tl.arange(0, triton.next_power_of_2(CHOSEN))
    ids, weights = _choose(logits, bias_ptr, expert, place, EXPERTS, CHOSEN, SIGMOID)
    is_real = (row < tl.load(num_rows_ptr))[:, None]
    at = row[:, None] * CHOSEN + place[None, :]
    kept = there[:, None] & (place < CHOSEN)[None, :]
    tl.store(ids_ptr + at, tl.where(is_real, ids, -1), mask=kept)
    tl.store(wts_ptr + at, tl.where(is_real, weights, 0.0), mask=kept)


@triton.jit
def _choose(
    logits,
    bias_ptr,
    expert,
    place,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    SIGMOID: tl.constexpr,
):
    """ids int32 and weights fp32 [rows, places] of the best of each row, most wanted first; of equals the lower id."""
    known = expert < EXPERTS
    score = logits
    if SIGMOID:
        score = tl.sigmoid(score) + tl.load(bias_ptr + expert, mask=known, other=0.0)[None, :]
    order = tl.where(known[None, :], ordered(score.to(tl.int32, bitcast=True)), LOWEST)
    ids = tl.zeros((logits.shape[0], place.shape[0]), tl.int32)
    chosen = tl.full((logits.shape[0], place.shape[0]), float("-inf"), tl.float32)
    for rank in tl.static_range(CHOSEN):
        best = tl.max(order, axis=1)
        is_best = order == best[:, None]
        which = tl.min(tl.where(is_best, expert[None, :], EXPERTS - 1), axis=1)
        taken = expert[None, :] == which[:, None]
        logit = tl.sum(tl.where(taken, logits, 0.0), axis=1)
        order = tl.where(taken, LOWEST, order)
        here = (place == rank)[None, :]
        ids = tl.where(here, which[:, None], ids)
        chosen = tl.where(here, logit[:, None], chosen)
    if SIGMOID:
        weights = tl.where((place < CHOSEN)[None, :], tl.sigmoid(chosen), 0.0)
    else:
        weights = tl.exp(chosen - tl.max(chosen, axis=1)[:, None])
    return ids, weights / tl.sum(weights, axis=1)[:, None]


def tile_constants(
    *,
    hidden_size: int,
    num_experts: int,
    num_experts_per_token: int,
    sigmoid: bool,
    rows: int,
    block: int,
    stages: int,
) -> dict[str, int | bool]:
    """Constants of `route_tile`."""
    return {
        "HIDDEN": hidden_size,
        "EXPERTS": num_experts,
        "CHOSEN": num_experts_per_token,
        "SIGMOID": sigmoid,
        "ROWS": rows,
        "BLOCK": block,
        "STAGES": stages,
    }


def tile_builds(
    launch: Launch, *, num_experts_per_token: int, rows: int, block: int, warps: int, stages: int
) -> tuple[Build, ...]:
    """The one form: by sigmoids where there is a bias, whose pointer is that of the weights without one."""
    return (
        Build(
            name="experts of a tile",
            function=route_tile,
            arguments={
                "h_ptr": launch.pointer("h"),
                "router_ptr": launch.pointer("router"),
                "bias_ptr": "*fp32",
                "num_rows_ptr": "*i32",
                "ids_ptr": "*i32",
                "wts_ptr": "*fp32",
                "num_rows": "i32",
            },
            constants=tile_constants(
                hidden_size=launch.columns("h"),
                num_experts=launch.outputs("router"),
                num_experts_per_token=num_experts_per_token,
                sigmoid="bias" in launch.operands,
                rows=rows,
                block=block,
                stages=stages,
            ),
            num_warps=warps,
            grid=(-(-launch.num_rows // rows),),
        ),
    )
