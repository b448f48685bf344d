"""When each launch of a decode step and of a prefill span would run: the plan's programs with the estimate's times.

The programs are unrolled and simulated; what a launch takes is its own work and an even part of what `speed.py`
predicts for all of them beyond theirs, so the two may differ only by what overlaps: `Timeline.estimate_s` stands beside
`Timeline.total_s`.
"""

from dataclasses import dataclass, replace

from firmtoken.compiler.costs import Costs, Residency
from firmtoken.compiler.estimate_constants import REFERENCE_DEPTH
from firmtoken.compiler.facts import ModelFacts
from firmtoken.compiler.machine import describe_machine
from firmtoken.compiler.op_costs import Load, Rows, load_of
from firmtoken.compiler.passes.describe_model import describe_model
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_costs import plan_costs, plan_residency
from firmtoken.compiler.program import BoundStep, Flat, Value
from firmtoken.compiler.simulation import Arrow, Task, simulate
from firmtoken.compiler.speed import (
    admission_s,
    decode_fixed_s,
    decode_step_s,
    link_bytes,
    prefill_fixed_s,
    prefill_s,
    step_host_s,
)
from firmtoken.compiler.unroll import unroll
from firmtoken.schema.profile import Profile

HOST = "host"
GROUPS: dict[str, tuple[str, ...]] = {
    "routed experts": ("moe_gate_up", "moe_down", "combine"),
    "projections": ("linear", "shared_expert", "embed", "head"),
    "attention, GDN": ("attention", "gdn", "qk_norm_rope_kv", "row_norm_rope_kv"),
    "routing, admission": ("route", "route_sigmoid", "prescribe", "resolve", "admit", "mark"),
    "norms, sampling": ("add_norm", "sample"),
    "copies": ("fetch", "restore", "snapshot", "copy"),
    "enqueueing": ("enqueue",),
}
"""What a reader wants told apart, with the ops of each."""
GROUP_OF = {op: group for group, ops in GROUPS.items() for op in ops}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One box of the picture. Times in seconds from the start."""

    op: str
    kernel: str
    stream: str
    layer: int | None
    """For which it works."""
    during: int | None
    """Among whose launches it stands: one layer earlier where it fetches ahead."""
    place: str
    """`chunk 0, tile 1`; empty outside such loops."""
    load: Load
    start: float
    end: float
    free: float
    """When the stream had finished what came before."""
    arrows: tuple[Arrow, ...]
    """Events of other streams that it waited for; `source` is an index into `Timeline.launches`."""

    @property
    def group(self) -> str:
        """What kind of work it is."""
        return GROUP_OF[self.op]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A program's launches in issue order with their times."""

    name: str
    """`decode step` or `prefill span`."""
    what: str
    """Of how many tokens."""
    launches: tuple[Launch, ...]
    estimate_s: float
    """What `speed.py` predicts for it."""
    layer_kinds: tuple[str, ...]

    @property
    def total_s(self) -> float:
        """From the first start to the last end."""
        return max(launch.end for launch in self.launches)

    def busy_s(self, stream: str, group: str = "") -> float:
        """Seconds in which a stream runs launches, of one group or of all."""
        return sum(
            launch.end - launch.start
            for launch in self.launches
            if launch.stream == stream and group in ("", launch.group)
        )

    def waiting_s(self, stream: str) -> float:
        """Seconds in which `main` could go on but for an event of `stream`."""
        return sum(
            launch.start - launch.free
            for launch in self.launches
            if launch.stream == "main" and launch.start > launch.free
            if self.launches[latest(launch).source].stream == stream
        )

    def stretch(self, first: int, last: int) -> tuple[float, float]:
        """From the first start to the last end of these layers on `main`."""
        inside = [
            launch
            for launch in self.launches
            if launch.stream == "main" and launch.during is not None
            if first <= launch.during <= last
        ]
        return min(launch.start for launch in inside), max(launch.end for launch in inside)

    def middle_layers(self) -> tuple[int, int]:
        """Two neighbours half-way through, of different kinds if there are such."""
        count = len(self.layer_kinds)
        pairs = [(layer, layer + 1) for layer in range(count // 2, count - 1)] or [(0, count - 1)]
        unlike = (pair for pair in pairs if len({self.layer_kinds[layer] for layer in pair}) > 1)
        return next(unlike, pairs[0])

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams that have launches; the host first."""
        found = dict.fromkeys(launch.stream for launch in self.launches)
        return tuple(sorted(found, key=(HOST, "main", "link").index))


def latest(launch: Launch) -> Arrow:
    """The event that a launch waited for to the last."""
    return max(launch.arrows, key=lambda arrow: arrow.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rates:
    """How the loads of a program become seconds."""

    link_rate: float
    fixed_s: float
    """Of each launch."""
    admission_s: float
    """Of a layer's, beyond that."""
    host_s: float
    """Of the host before the first launch."""

    def seconds(self, op: str, load: Load) -> float:
        extra = self.admission_s if op == "admit" else 0.0
        return load.seconds + load.link_bytes / self.link_rate + self.fixed_s + extra


def timelines(profile: Profile, plan: Plan) -> tuple[Timeline, ...]:
    """A decode step of one request at depth 8k, and the first span of a prompt that fills it."""
    _, facts = describe_model(profile)
    costs = plan_costs(describe_machine(profile.hardware), facts, plan)
    residency = plan_residency(plan)
    return (_decode(plan, facts, costs, residency), _prefill(plan, facts, costs, residency))


def _decode(plan: Plan, facts: ModelFacts, costs: Costs, residency: Residency) -> Timeline:
    depth = REFERENCE_DEPTH
    steps = _steps(unroll(plan.programs.decode, facts.layer_kinds))
    rows = Rows(tokens=1, sequences=1, depth=depth, decodes=True)
    fetched = link_bytes(costs, residency, sequences=1) / costs.layers
    admission = admission_s(costs, residency)
    rates = _Rates(
        link_rate=costs.machine.gather_rate,
        fixed_s=decode_fixed_s(costs) / len(steps),
        admission_s=admission / costs.layers,
        host_s=step_host_s(costs.machine),
    )
    loads = [
        Load(link_bytes=fetched) if bound.step.op == "fetch" else load_of(bound, facts, costs, rows)
        for bound in steps
    ]
    return Timeline(
        name="decode step",
        what=f"one request, {depth:,} tokens before it",
        launches=_launches(steps, loads, rates, costs, graph=plan.programs.decode.captured),
        estimate_s=decode_step_s(costs, residency, sequences=1, depth=depth),
        layer_kinds=facts.layer_kinds,
    )


def _prefill(plan: Plan, facts: ModelFacts, costs: Costs, residency: Residency) -> Timeline:
    schedule = plan.schedule
    span = min(schedule.prefill_span, plan.context.effective)
    if schedule.order == "chunk":
        span = min(span, schedule.moe_chunk)  # one chunk is like the next
    chunks = _pieces(span, schedule.moe_chunk)
    tiles = tuple(_pieces(chunk, schedule.mixer_tile) for chunk in chunks)
    program = plan.programs.prefill
    flat = unroll(program, facts.layer_kinds, chunks=len(chunks), tiles=tuple(map(len, tiles)))
    steps = _steps(flat)
    on_main = sum(bound.step.stream == "main" for bound in steps)
    rates = _Rates(
        link_rate=costs.machine.copy_rate,
        fixed_s=prefill_fixed_s(costs, span) / on_main,
        admission_s=0.0,
        host_s=0.0,
    )
    loads = [_prefill_load(bound, plan, facts, costs, chunks, tiles) for bound in steps]
    return Timeline(
        name="prefill span",
        what=f"the first {span:,} tokens of one prompt",
        launches=_launches(steps, loads, rates, costs, graph=False),
        estimate_s=prefill_s(costs, residency, span),
        layer_kinds=facts.layer_kinds,
    )


def _prefill_load(
    bound: BoundStep,
    plan: Plan,
    facts: ModelFacts,
    costs: Costs,
    chunks: tuple[int, ...],
    tiles: tuple[tuple[int, ...], ...],
) -> Load:
    """Load of a launch of a span."""
    at = bound.at
    if bound.step.op == "fetch":
        (staged,) = (value for value in bound.writes if value.name == "staged")
        return Load(link_bytes=_fetched(plan, *staged.index) * costs.slot_bytes)
    chunk = at.get("c", 0)
    tokens, depth = chunks[chunk], sum(chunks[:chunk])
    if "t" in at:
        tokens, depth = tiles[chunk][at["t"]], depth + sum(tiles[chunk][: at["t"]])
    rows = Rows(tokens=tokens, sequences=1, depth=depth, decodes=False)
    load = load_of(bound, facts, costs, rows)
    share = _share(bound, plan)
    return Load(
        device_bytes=share * load.device_bytes,
        flop=share * load.flop,
        seconds=share * load.seconds,
    )


def _share(bound: BoundStep, plan: Plan) -> float:
    """The part of its op that a launch does: a wave has some of the experts, a block some of the columns."""
    at, share = bound.at, 1.0
    if "b" in at:
        share /= plan.programs.prefill.bounds["columns"]
    if "w" in at:
        experts = _fetched(plan, at["l"], at["w"])
        if at["w"] == 0:  # with what is on the device
            experts += plan.experts.slots_per_layer[at["l"]]
        share *= experts / plan.experts.per_layer
    return share


def _fetched(plan: Plan, layer: int, wave: int | None = None) -> int:
    """Experts that a layer misses, or those of one wave: at most what half the staging range holds."""
    missing = plan.experts.per_layer - plan.experts.slots_per_layer[layer]
    if wave is None:
        return missing
    half = plan.experts.staging_slots // 2
    return max(0, min(half, missing - wave * half))


def _pieces(total: int, size: int) -> tuple[int, ...]:
    return tuple(min(size, total - done) for done in range(0, total, size))


def _steps(flat: Flat) -> list[BoundStep]:
    return [item for item in flat if isinstance(item, BoundStep)]


def _launches(
    steps: list[BoundStep], loads: list[Load], rates: _Rates, costs: Costs, *, graph: bool
) -> tuple[Launch, ...]:
    """The steps behind what the host does for them: one launch of a graph, or one for each of them.

    A CPU has no host beside it: what a launch costs there is in its own time.
    """
    hosted = costs.machine.kind == "cuda"
    enqueue = Task(stream=HOST, seconds=costs.machine.launch_s)
    first = replace(enqueue, seconds=enqueue.seconds + rates.host_s)
    tasks: list[Task] = []
    owners: list[int | None] = []
    """For each task the step that it is, or `None` for the host's."""
    for index, (bound, load) in enumerate(zip(steps, loads, strict=True)):
        waits = bound.waits
        if hosted and (index == 0 or not graph):
            enqueued = Value("enqueued", (index,))
            tasks.append(replace(enqueue if index else first, records=(enqueued,)))
            owners.append(None)
            waits = (*waits, enqueued)
        tasks.append(
            Task(
                stream=bound.step.stream,
                seconds=rates.seconds(bound.step.op, load),
                waits=waits,
                records=bound.records,
            )
        )
        owners.append(index)
    name = "graph" if graph else "launches"
    return tuple(
        Launch(
            op="enqueue" if owner is None else steps[owner].step.op,
            kernel=name if owner is None else steps[owner].step.kernel,
            stream=task.stream,
            layer=None if owner is None else _layer(steps[owner]),
            during=None if owner is None else _during(steps[owner]),
            place="" if owner is None else _place(steps[owner]),
            load=Load() if owner is None else loads[owner],
            start=run.start,
            end=run.end,
            free=run.free,
            arrows=run.arrows,
        )
        for task, owner, run in zip(tasks, owners, simulate(tasks), strict=True)
    )


def _layer(bound: BoundStep) -> int | None:
    """The layer that a launch works for: that of the bank where it fetches ahead."""
    for value in bound.reads:
        if value.name in ("bank", "table") and value.index:
            return value.index[0]
    return bound.at.get("l")


def _during(bound: BoundStep) -> int | None:
    """The layer whose turn it is; states are restored for all layers before the first."""
    return None if bound.step.op == "restore" else bound.at.get("l")


def _place(bound: BoundStep) -> str:
    """Which chunk, tile, wave and block; a copy's wave is that of the staging range that it fills."""
    words = {"c": "chunk", "t": "tile", "w": "wave", "b": "block"}
    at = dict(bound.at)
    for value in bound.writes:
        if value.name == "staged" and len(value.index) > 1:
            at["w"] = value.index[1]
    return ", ".join(f"{word} {at[name]}" for name, word in words.items() if name in at)
