"""`verify`: what must hold of any plan, proved on the plan itself (DESIGN.md 1, a-d); a plan that fails is not run."""

from collections.abc import Iterator

from firmtoken.compiler.admission import need
from firmtoken.compiler.errors import PlanRefused
from firmtoken.compiler.happens_before import Launch, before, stamp
from firmtoken.compiler.ledger import Ledger
from firmtoken.compiler.placement import NoPlace, placement
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.race import Layout, Place, check_races
from firmtoken.compiler.runs import Run, checked_runs
from firmtoken.compiler.sessions import Cards, batch_of, cards_of
from firmtoken.compiler.steps_ahead import with_steps_ahead
from firmtoken.compiler.unroll import BadReference
from firmtoken.compiler.verify_faults import check_faults, check_no_faults
from firmtoken.compiler.verify_places import check_places, check_steps


def verify(plan: Plan, *, allow_faults: bool = False) -> None:
    """Raises `PlanRefused` with all that is wrong. `allow_faults`: a test's plan may let things go wrong."""
    faults: list[str] = [] if allow_faults else list(check_no_faults(plan))
    try:
        for check in (check_ledgers, check_places, check_admission, check_steps):
            faults += check(plan)
        if not faults:
            faults += check_programs(plan)
            faults += check_faults(plan)
    except (NoPlace, BadReference) as error:
        faults.append(str(error))
    if faults:
        raise PlanRefused(tuple(dict.fromkeys(faults)))


def check_ledgers(plan: Plan) -> Iterator[str]:
    """(c) Both sides sum up, both fit, no line is a remainder."""
    for side, ledger in (("device", plan.memory.device), ("host", plan.memory.host)):
        yield from _check_ledger(side, ledger)
    lines = {line.name: line for line in plan.memory.device.lines}
    experts, cache = plan.experts, plan.kv_cache
    expected = {
        "experts.cache": experts.slots,
        "experts.staging": experts.staging_slots,
        "experts.overflow": experts.overflow_slots,
        "kv_pages": cache.pages,
        "states": cache.state_slots,
    }
    for name, count in expected.items():
        found = lines[name].count if name in lines else 0
        if found != count:
            yield f"line `{name}` counts {found}, the plan has {count}"
    missing = experts.per_layer - min(experts.slots_per_layer)
    half = experts.staging_slots // 2
    for name, program in plan.programs.named():
        waves = program.bounds.get("waves", 1)
        if name in ("prefill", "extend") and missing > waves * half:
            times = f", {name} fills it {waves} times" if waves > 1 else ""
            yield f"a layer may miss {missing} experts, a half of the staging range holds {half}{times}"


def _check_ledger(side: str, ledger: Ledger) -> Iterator[str]:
    total = sum(line.bytes for line in ledger.lines)
    if total != ledger.total:
        yield f"{side}: lines sum to {total:,} bytes, total says {ledger.total:,}"
    if ledger.total + ledger.free != ledger.budget:
        yield f"{side}: total and free are not the budget of {ledger.budget:,} bytes"
    if ledger.free < 0 or ledger.budget > ledger.capacity:
        yield f"{side}: {ledger.total:,} bytes do not fit {ledger.budget:,}"
    for line in ledger.lines:
        raw = line.unit_bytes * line.count
        if line.bytes != -(-raw // line.align) * line.align:
            yield f"{side}: line `{line.name}` is {line.bytes:,} bytes, {line.count} x {line.unit_bytes:,} are due"


def check_admission(plan: Plan) -> Iterator[str]:
    """(d) Every length that the plan advertises can be scheduled alone, and nothing it refuses could be."""
    context, cache = plan.context.effective, plan.kv_cache
    requests = plan.schedule.max_num_seqs
    usable = cache.pages - 1
    if context > cache.tokens:
        yield f"a request may hold {context} tokens, the pool {cache.tokens}"
    if need(context, 0, cache.page_size) > usable:
        yield f"a request of {context} tokens needs more than the {usable} usable pages"
    if need(cache.tokens, 0, cache.page_size) + requests - 1 > usable:
        yield f"{requests} requests of together {cache.tokens} tokens need a sentinel and their rounding"
    if plan.admission.max_prompt_tokens != context - 1:
        yield f"the door refuses above {plan.admission.max_prompt_tokens}, the context is {context}"
    if plan.schedule.prefill_span < cache.page_size:
        yield f"a span of {plan.schedule.prefill_span} tokens cannot hold a page of {cache.page_size}"
    has_states = "linear" in plan.model.layer_kinds
    if has_states and cache.state_slots < requests + 1:
        yield f"{cache.state_slots} state slots for {requests} requests and the padding slot"


def check_programs(plan: Plan) -> Iterator[str]:
    """(a) No race and no overlap, in each program and in the compositions of D5."""
    layout = layout_of(plan)
    for run in checked_runs(plan):
        yield from check_run(run, layout)
    yield from _check_streams(plan, cards_of(plan.kernels))


def layout_of(plan: Plan) -> Layout:
    """Where the plan's values live, for the checker."""
    places = placement(plan.buffers, plan.model.layer_kinds)
    batches = {batch_of(name) for name, _ in plan.programs.named()}
    layout = Layout(
        place=lambda value: Place(str(value), 0, 1) if value in batches else places.place(value),
        persistent=lambda value: value in batches or places.persistent(value),
        view_of=lambda value: () if value in batches else places.view_of(value),
        one_tile=places.one_tile,
    )
    return with_steps_ahead(layout, {row.name for row in plan.buffers if "owner" in row.index})


def check_run(run: Run, layout: Layout) -> Iterator[str]:
    """The one rule of D5, and fork and join where the run must have them."""
    yield from check_races(run.launches, layout)
    if run.closed:
        yield from check_closed(run.name, run.launches)


def check_closed(name: str, launches: tuple[Launch, ...]) -> Iterator[str]:
    """A closed program forks from `main` and joins it again: needed of a captured one."""
    stamps = stamp(launches)
    last = stamps[max(i for i, launch in enumerate(launches) if launch.stream == "main")]
    first = stamps[next(i for i, launch in enumerate(launches) if launch.stream == "main")]
    for launch, when in zip(launches, stamps, strict=True):
        if launch.stream == "main":
            continue
        if not before(when, last):
            yield f"{name}: {launch.label} on `{launch.stream}` is not joined before the end"
        if not before(first, when):
            yield f"{name}: {launch.label} on `{launch.stream}` does not follow the fork"


def _check_streams(plan: Plan, cards: Cards) -> Iterator[str]:
    side = len(plan.streams.names) > 1
    for row in cards.rows.values():
        if row.ignores_stream and (side or plan.programs.decode.captured):
            yield f"kernel `{row.kernel}` ignores its stream: refused in captured programs and beside a side stream"
