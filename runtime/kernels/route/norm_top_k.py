"""`add_norm` and `route` in one launch for a few rows (Triton, no torch).

A program is one warp: it makes the sum and the norm of its row for itself, 12 kB from L2, and the logits of a few
experts. The row's first program writes h. The sum goes to hid only when all programs of the row have read it: by the
last to arrive, which chooses the experts too (`top_k.py`).
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types, and its tuples grow while it is compiled.

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.early_start import start_next_after_last
from firmtoken.runtime.kernels.route.top_k import (
    COLUMNS,
    choose,
    is_last,
    load_router,
    route_arguments,
    route_constants,
)


@triton.jit
def norm_route_rows(
    hid_ptr,
    y_ptr,
    norm_ptr,
    h_ptr,
    router_ptr,
    bias_ptr,
    num_rows_ptr,
    logits_ptr,
    arrived_ptr,
    ids_ptr,
    wts_ptr,
    eps,
    HIDDEN: tl.constexpr,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    SIGMOID: tl.constexpr,
    AT_ONCE: tl.constexpr,
    EARLY: tl.constexpr,
):
    """hid[T, HIDDEN] += y, h = rmsnorm(hid) * norm, then ids and wts as in `route_rows`; h, rounded as it is stored.

    Operands of `add_norm_row` and `route_rows`; h may not be y. EARLY (`early_start.py`): all but y must be older than
    the launch before.
    """
    row = tl.program_id(1)
    wide_row = row.to(tl.int64)
    start = wide_row * HIDDEN
    expert = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    router = load_router(router_ptr, expert, HIDDEN, EXPERTS)
    is_real = row < tl.load(num_rows_ptr)
    if EARLY:
        start_next_after_last()

    hids = ()
    squares = tl.zeros((COLUMNS,), tl.float32)
    for step in tl.static_range(0, HIDDEN, COLUMNS):
        column = step + tl.arange(0, COLUMNS)
        inside = column < HIDDEN
        hid = tl.load(hid_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        hid += tl.load(y_ptr + start + column, mask=inside, other=0.0).to(tl.float32)
        hids += (hid.to(hid_ptr.dtype.element_ty),)
        hid = hid.to(hid_ptr.dtype.element_ty).to(tl.float32)
        squares += hid * hid
    scale = tl.rsqrt(tl.sum(squares, axis=0) / HIDDEN + eps)
    sums = tl.zeros((AT_ONCE, COLUMNS), tl.float32)
    for step in tl.static_range(0, HIDDEN, COLUMNS):
        column = step + tl.arange(0, COLUMNS)
        norm = tl.load(norm_ptr + column, mask=column < HIDDEN, other=0.0).to(tl.float32)
        wide = hids[step // COLUMNS].to(tl.float32) * scale
        h = (wide * norm).to(h_ptr.dtype.element_ty)
        first = tl.program_id(0) == 0
        tl.store(h_ptr + start + column, h, mask=(column < HIDDEN) & first)
        sums += router[step // COLUMNS].to(tl.float32) * h.to(tl.float32)[None, :]

    row_ptr = logits_ptr + wide_row * EXPERTS
    tl.store(row_ptr + expert, tl.sum(sums, axis=1), mask=expert < EXPERTS)
    if is_last(arrived_ptr + row):
        for step in tl.static_range(0, HIDDEN, COLUMNS):
            column = step + tl.arange(0, COLUMNS)
            tl.store(hid_ptr + start + column, hids[step // COLUMNS], mask=column < HIDDEN)
        place = tl.arange(0, triton.next_power_of_2(CHOSEN))
        ids, weights = choose(row_ptr, bias_ptr, place, EXPERTS, CHOSEN, SIGMOID)
        at = wide_row * CHOSEN + place
        tl.store(ids_ptr + at, tl.where(is_real, ids, -1), mask=place < CHOSEN)
        tl.store(wts_ptr + at, tl.where(is_real, weights, 0.0), mask=place < CHOSEN)


def norm_route_builds(
    launch: Launch, *, num_experts_per_token: int, experts_at_once: int, early: int
) -> tuple[Build, ...]:
    """The one form; operands are those of `add_norm` and of `route` or `route_sigmoid`."""
    return (
        Build(
            name="sum, norm and experts of a row",
            function=norm_route_rows,
            arguments={
                **{f"{name}_ptr": launch.pointer(name) for name in ("hid", "y", "norm", "h")},
                **route_arguments(launch),
                "eps": "fp32",
            },
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
