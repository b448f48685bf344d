"""`set_thresholds`: from how many tokens on a prompt streams the bank, how often decode runs between, deadlines."""

from firmtoken.compiler.costs import Costs, Residency
from firmtoken.compiler.errors import PlanError, Refusal
from firmtoken.compiler.facts import Batches, Split
from firmtoken.compiler.hit_rates import hit_rate
from firmtoken.compiler.plan import Deadlines, OnDemand, Schedule
from firmtoken.compiler.quantities import count, seconds
from firmtoken.compiler.speed import (
    decode_step_s,
    on_demand_s,
    pass_s,
    prefill_s,
)
from firmtoken.schema.profile import Profile

LONGEST_GAP_S = 0.5
"""Between two tokens of a stream while another request's prompt is read (D7)."""
START_DEADLINE_S = 120.0
"""A disk that sleeps or a file on a slow share answers within this; a kernel compiles within it."""
DECODE_DEADLINE_S = 2.0
LAYER_DEADLINE_S = 5.0
DEADLINE_FACTOR = 20
"""A step that takes so many times its prediction is stalled, not slow (D18)."""
CPU_FACTOR = 10


def set_thresholds(
    profile: Profile,
    batches: Batches,
    split: Split,
    costs: Costs,
    residency: Residency,
    page_size: int,
) -> Schedule:
    """The numbers by which the engine schedules, all fixed here."""
    _refuse_short_span(split.prefill_span, page_size)
    step = decode_step_s(costs, residency, sequences=batches.max_num_seqs, depth=split.context)
    unit = _unit_s(costs, residency, batches.moe_chunk, split.context)
    every = max(1, int((LONGEST_GAP_S - step) / unit))
    below = _on_demand_below(profile, costs, residency, batches)
    order = "layer" if residency.offloaded else "chunk"
    return Schedule(
        max_num_seqs=batches.max_num_seqs,
        mixer_tile=batches.mixer_tile,
        moe_chunk=batches.moe_chunk,
        prefill_span=split.prefill_span,
        order=order,
        on_demand_below=below,
        decode_every_units=every,
        graph_batch_sizes=batches.graph_batch_sizes,
        prefill_graph_rows=() if residency.offloaded else batches.prefill_graph_rows,
        deadlines=_deadlines(profile, costs, step, unit),
        because=_because(residency, below, every, unit, batches),
    )


def _unit_s(costs: Costs, residency: Residency, chunk: int, context: int) -> float:
    # A unit is one layer of one chunk; the deepest chunk of the longest prompt is the slowest.
    return pass_s(costs, residency, chunk, max(0, context - chunk)) / costs.layers


def _on_demand_below(
    profile: Profile, costs: Costs, residency: Residency, batches: Batches
) -> OnDemand:
    asked = profile.schedule.on_demand_below
    if asked != "auto":
        return OnDemand(cold=asked, warm=asked)
    if residency.missing == 0:
        return OnDemand(cold=0, warm=0)
    most = batches.mixer_tile
    return OnDemand(
        cold=_crossing(costs, residency, residency.fraction, most),
        warm=_crossing(costs, residency, hit_rate(residency.fraction), most),
    )


def _refuse_short_span(span: int, page_size: int) -> None:
    # A piece of a prompt that is not its last ends with a page, so a span must hold one.
    if span >= page_size:
        return
    raise PlanError(
        (
            Refusal(
                field="schedule.prefill_span",
                message=f"a span of {span} tokens cannot hold a page of {page_size}",
                hint=f"set it to at least {page_size}, or lower `cache.page_size`",
                code="contradiction",
            ),
        )
    )


def _crossing(costs: Costs, residency: Residency, hits: float, most: int) -> int:
    # The least prompt for which fetching on demand takes longer than streaming; on demand wins below it.
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        if on_demand_s(costs, residency, middle, hits) > prefill_s(costs, residency, middle):
            high = middle
        else:
            low = middle + 1
    return low


def _deadlines(profile: Profile, costs: Costs, step: float, unit: float) -> Deadlines:
    asked = profile.schedule.step_deadline
    if asked != "auto":
        return Deadlines(decode_s=asked, prefill_layer_s=asked, start_s=START_DEADLINE_S)
    factor = CPU_FACTOR if costs.machine.kind == "cpu" else 1
    return Deadlines(
        decode_s=factor * max(DECODE_DEADLINE_S, DEADLINE_FACTOR * step),
        prefill_layer_s=factor * max(LAYER_DEADLINE_S, DEADLINE_FACTOR * unit),
        start_s=START_DEADLINE_S,
    )


def _because(
    residency: Residency, below: OnDemand, every: int, unit: float, batches: Batches
) -> str:
    if not residency.offloaded:
        order = "everything is resident, so prompts run chunk by chunk"
    else:
        order = (
            f"layer by layer, so that {residency.missing:,} missing experts are streamed once a span; "
            f"below {below.cold} new tokens ({below.warm} after a hit) fetching on demand is faster"
        )
    return (
        f"{order}; a layer of {batches.moe_chunk:,} tokens takes up to {seconds(unit)}, "
        f"so a decode step after every {count(every, 'layer')} keeps gaps below {LONGEST_GAP_S} s"
    )
