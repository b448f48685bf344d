"""The interpreter: it launches what the plan says, in the plan's order, and moves exactly the bytes it must."""

import contextlib
import importlib
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Body, BoundStep, Step, Value
from firmtoken.compiler.steps import map_bodies, map_steps
from firmtoken.compiler.unroll import bind_all, unroll
from firmtoken.runtime.engine.batches import Cut
from firmtoken.runtime.engine.launches import Launch, NoKernel
from firmtoken.runtime.engine.position import IDLE, RUNNING
from firmtoken.runtime.engine.program import MAX_KEPT, Launched, LaunchFailed, Recent
from firmtoken.runtime.engine.work import Decode

Prompt = Callable[..., list[int]]


def planned(plan: Plan, name: str, *, chunks: int, tiles: int = 1) -> list[Launched]:
    """What the plan says a run of a program launches."""
    program = getattr(plan.programs, name)
    entry = bind_all(program.entry_waits, {})
    launches = []
    for item in unroll(program, plan.model.layer_kinds, chunks=chunks, tiles=(tiles,) * chunks):
        if isinstance(item, BoundStep):
            on_main = item.step.stream == "main"
            launches.append(
                Launched(
                    program=name,
                    op=item.step.op,
                    kernel=item.step.kernel,
                    stream=item.step.stream,
                    waits=item.waits,
                    entry_waits=entry if on_main else (),
                )
            )
            entry = () if on_main else entry
    return launches


def on_demand(plan: Plan) -> Plan:
    """Below 100 new tokens experts are fetched on demand."""
    below = replace(plan.schedule.on_demand_below, cold=100, warm=100)
    return replace(plan, schedule=replace(plan.schedule, on_demand_below=below))


@pytest.mark.parametrize("profile", ["tiny-cpu", "tiny-cpu-resident"])
def test_what_is_launched_equals_the_unrolled_programs(start, prompt: Prompt, profile: str) -> None:
    bench = start(
        profile, "schedule.prefill_chunk=128", "schedule.prefill_span=256", change=on_demand
    )
    bench.interpreter.record = record = []
    bench.add(1, prompt(200), 2)
    bench.engine.step()
    span = planned(bench.plan, "prefill", chunks=2)
    assert record == span + planned(bench.plan, "park", chunks=1)
    record.clear()
    bench.engine.step()
    assert record == planned(bench.plan, "decode", chunks=1)
    assert {launch.op for launch in record} >= {"gdn", "attention", "moe_down", "sample"}
    record.clear()
    bench.add(2, prompt(200), 1)
    bench.engine.step()
    if profile == "tiny-cpu":
        assert record == planned(bench.plan, "extend", chunks=1)
        assert {launch.stream for launch in record} == {"main", "link"}
    bench.engine.abort_all()


def without_op(plan: Plan, op: str) -> Plan:
    def drop(body: Body) -> Body:
        return tuple(item for item in body if not (isinstance(item, Step) and item.op == op))

    programs = replace(
        plan.programs,
        decode=map_bodies(plan.programs.decode, drop),
        prefill=map_bodies(plan.programs.prefill, drop),
    )
    return replace(plan, programs=programs)


def test_an_op_taken_out_of_the_plan_is_not_run(start, prompt: Prompt) -> None:
    whole = start("tiny-cpu-resident")
    changed = start("tiny-cpu-resident", change=lambda plan: without_op(plan, "shared_expert"))
    for bench in (whole, changed):
        bench.ask(prompt(20), 1)
    logits, other = (
        bench.interpreter.views.tensor(Value("prefill.logits")) for bench in (whole, changed)
    )
    assert (logits - other).abs().max() > 0.1 * logits.abs().max()


def test_the_kernel_that_the_plan_names_is_called(
    start, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("firmtoken.runtime.kernels.moe_gate_up.torch_gather")
    called = []
    original = module.moe_gate_up

    def spy(*arguments, **operands) -> None:
        called.append(1)
        original(*arguments, **operands)

    monkeypatch.setattr(module, "moe_gate_up", spy)
    first = start().ask(prompt(90), 6)
    assert not called
    assert start("tiny-cpu", "kernels.moe_gate_up=torch_gather").ask(prompt(90), 6) == first
    assert called


@pytest.mark.report(55)
def test_a_kernel_without_a_row_is_refused(start) -> None:
    def rename(plan: Plan) -> Plan:
        decode = map_steps(
            plan.programs.decode,
            lambda step: replace(step, kernel="other") if step.op == "gdn" else step,
        )
        return replace(plan, programs=replace(plan.programs, decode=decode))

    bench = start("tiny-cpu-resident", change=rename)
    with pytest.raises(NoKernel, match="no kernels row for `gdn` by `other` with 1 rows in decode"):
        bench.ask([1, 2], 2)


class Routes:
    """Spies on `route`: the experts of each launch, in order of layers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        module = importlib.import_module("firmtoken.runtime.kernels.route.reference")
        original = module.route
        self.seen: list[set[int]] = []

        def spy(batch, *, ids, **operands) -> None:
            original(batch, ids=ids, **operands)
            self.seen.append({int(expert) for expert in ids.view(-1) if expert >= 0})

        monkeypatch.setattr(module, "route", spy)


def missing(bench) -> list[set[int]]:
    """Experts of each layer that are in no slot."""
    tables = [
        bench.interpreter.views.tensor(Value("table", (layer,))).tolist()
        for layer in range(len(bench.plan.model.layer_kinds))
    ]
    return [{expert for expert, slot in enumerate(table) if slot < 0} for table in tables]


@pytest.mark.parametrize("num_tokens", [1, 5, 16, 51])
def test_an_extension_moves_exactly_the_experts_it_routes_to_and_misses(
    start, prompt: Prompt, monkeypatch: pytest.MonkeyPatch, num_tokens: int
) -> None:
    routes = Routes(monkeypatch)
    bench = start("tiny-cpu", change=on_demand)
    bench.ask(prompt(129), 1)
    absent = missing(bench)
    routes.seen.clear()
    bench.ask(prompt(128) + prompt(num_tokens, 5), 1)
    assert bench.logs(f"extend {num_tokens} tokens")
    expected = sum(len(seen & gone) for seen, gone in zip(routes.seen, absent, strict=True))
    stats = bench.engine.stats()
    assert stats.link_bytes["extend"] == expected * bench.plan.experts.slot_bytes > 0
    assert missing(bench) == absent


def test_one_token_past_a_cached_boundary_moves_what_a_decode_step_moves(
    start, prompt: Prompt
) -> None:
    extended, decoded = start(), start()
    for bench in (extended, decoded):
        bench.ask(prompt(128), 1)  # up to 64 is cached
        bench.ask(prompt(129), 1)  # up to 128
        bench.interpreter.counters.link_bytes.update(prefill=0, extend=0)
    extended.ask(prompt(129), 1)
    decoded.engine.step()
    decoded.add(1, prompt(128), 2)
    decoded.engine.step()
    drawn = decoded.text(1)[0]
    decoded.engine.step()
    moved = decoded.engine.stats().link_bytes["decode"]
    extended.interpreter.counters.link_bytes["extend"] = 0
    extended.ask([*prompt(128), drawn], 1)
    assert extended.engine.stats().link_bytes["extend"] == moved > 0
    assert extended.engine.stats().link_bytes["prefill"] == 0


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_a_span_moves_the_missing_bank_once_however_many_chunks(
    start, prompt: Prompt, chunks: int
) -> None:
    chunk = {1: 384, 2: 192, 3: 128}[chunks]
    bench = start("tiny-cpu", f"schedule.prefill_chunk={chunk}", "schedule.prefill_span=384")
    bench.interpreter.record = record = []
    bench.ask(prompt(384), 1)
    assert sum(launch.op == "embed" for launch in record) == chunks
    whole_bank = sum(len(gone) for gone in missing(bench)) * bench.plan.experts.slot_bytes
    assert bench.engine.stats().link_bytes == {"decode": 0, "prefill": whole_bank, "extend": 0}


def test_decode_hits_and_misses_are_all_it_routes_to(
    start, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = Routes(monkeypatch)
    bench = start()
    bench.add(1, prompt(100), 12)
    bench.engine.step()
    routes.seen.clear()
    bench.drain()
    stats = bench.engine.stats()
    assert stats.expert_hits + stats.expert_misses == sum(map(len, routes.seen))
    assert stats.expert_hits > 0 and stats.expert_misses > 0


def busy(start, prompt: Prompt, change: Callable[[Plan], Plan] = lambda plan: plan):
    """A stream that decodes at every yield of another one's prompt."""

    def often(plan: Plan) -> Plan:
        return change(replace(plan, schedule=replace(plan.schedule, decode_every_units=1)))

    bench = start(
        "tiny-cpu", "schedule.prefill_chunk=128", "schedule.prefill_span=512", change=often
    )
    bench.add(1, prompt(50, 1), 60)
    bench.engine.step()
    bench.add(2, prompt(500, 2), 5)
    return bench


@pytest.mark.report(57)
def test_a_slow_link_changes_times_and_nothing_else(
    start, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick = busy(start, prompt)
    quick.drain()
    module = importlib.import_module("firmtoken.runtime.kernels.fetch.reference")
    original = module.fetch

    def slow(*arguments, **operands) -> int:
        time.sleep(0.003)
        return original(*arguments, **operands)

    monkeypatch.setattr(module, "fetch", slow)
    patient = busy(start, prompt)
    patient.drain()
    assert [patient.text(who) for who in (1, 2)] == [quick.text(who) for who in (1, 2)]

    def hasty(plan: Plan) -> Plan:
        """A planted fault: nobody waits for the experts."""

        def forget(step: Step) -> Step:
            return replace(step, waits=tuple(w for w in step.waits if "fetched" not in w))

        programs = replace(
            plan.programs,
            decode=map_steps(plan.programs.decode, forget),
            prefill=map_steps(plan.programs.prefill, forget),
        )
        return replace(plan, programs=programs)

    wrong = busy(start, prompt, hasty)
    # A list of misses that was overwritten while it was read may fail, too.
    with contextlib.suppress(LaunchFailed):
        wrong.drain()
    assert [wrong.text(who) for who in (1, 2)] != [quick.text(who) for who in (1, 2)]


@pytest.mark.report(57)
def test_a_decode_step_that_ignores_holds_is_noticed(start, prompt: Prompt) -> None:
    right = busy(start, prompt)
    right.drain()

    def holds_nothing(plan: Plan) -> Plan:
        prefill = map_steps(plan.programs.prefill, lambda step: replace(step, holds=()))
        return replace(plan, programs=replace(plan.programs, prefill=prefill))

    wrong = busy(start, prompt, holds_nothing)
    wrong.drain()
    assert wrong.text(2) != right.text(2)


def test_only_the_last_few_that_were_made_are_kept() -> None:
    recent: Recent[int, int] = Recent()
    made: list[int] = []

    def make(key: int) -> int:
        made.append(key)
        return -key

    for key in range(MAX_KEPT):
        assert recent.get(key, partial(make, key)) == -key
    recent.get(0, partial(make, 0))  # used again, so 1 is the least recent
    recent.get(99, partial(make, 99))
    assert len(recent) == MAX_KEPT
    made.clear()
    for key in (0, 99, 1):
        recent.get(key, partial(make, key))
    assert made == [1]


def test_a_step_counted_in_an_unknown_unit_is_our_bug(start) -> None:
    def miscount(plan: Plan) -> Plan:
        decode = map_steps(
            plan.programs.decode,
            lambda step: replace(step, rows="token") if step.op == "route" else step,
        )
        return replace(plan, programs=replace(plan.programs, decode=decode))

    bench = start("tiny-cpu-resident", change=miscount)
    with pytest.raises(AssertionError, match="`route` is counted in `token`"):
        bench.ask([1, 2], 2)


def test_a_buffer_with_a_unit_behind_its_first_entry_is_our_bug(start) -> None:
    def misplace(plan: Plan) -> Plan:
        buffers = tuple(
            replace(row, shape=(*row.shape, "tokens")) if row.name == "decode.h" else row
            for row in plan.buffers
        )
        return replace(plan, buffers=buffers)

    bench = start("tiny-cpu-resident", change=misplace)
    with pytest.raises(AssertionError, match="only the first entry"):
        bench.ask([1, 2], 2)


def test_a_launch_is_bound_when_it_is_asked_for_and_only_once(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start("tiny-cpu-resident")
    cuts = []
    cut = bench.interpreter.views.cut

    def counted(*arguments: Any) -> Any:
        cuts.append(arguments)
        return cut(*arguments)

    monkeypatch.setattr(bench.interpreter.views, "cut", counted)
    bound = bench.interpreter.bind("prefill", Cut(chunks=((77,),), num_seqs=1))
    assert not cuts, "nothing is bound before the first launch"
    first = next(iter(bound))
    assert len(cuts) == len(first.step.operands)
    one, other = iter(bound), iter(bound)
    turns = [(next(one), next(other)) for _ in range(5)]
    assert turns[0][0] is first
    assert all(mine is yours for mine, yours in turns), "whoever asks first binds for both"
    whole = list(bound)
    known = len(cuts)
    assert len(whole) == len(bench.interpreter.unrolled("prefill", Cut(chunks=((1,),), num_seqs=1)))
    assert [*one] == whole[5:] and [*bound] == whole
    assert len(cuts) == known


def test_only_a_launch_that_main_waits_for_at_once_may_run_on_its_thread(start) -> None:
    bench = start()
    brief = {}
    for name in ("decode", "prefill"):
        rows = 1 if name == "decode" else 64
        bound = bench.interpreter.bind(name, Cut(chunks=((rows,),), num_seqs=1))
        side = [item for item in bound if isinstance(item, Launch) and not item.on_main]
        assert side
        brief[name] = [item.brief for item in side]
        assert not any(item.brief for item in bound if isinstance(item, Launch) and item.on_main)
    assert all(brief["decode"])
    assert sum(brief["prefill"]) <= 1  # layer 0 has nothing to hide behind


def test_a_run_that_nobody_reads_keeps_no_later_one_from_having_ended(start) -> None:
    """As that of a known text at the start: from then on the engine seemed never to be idle."""
    bench = start("tiny-cpu-resident")
    interpreter = bench.interpreter
    batches, cut = bench.engine._decode_batches(Decode(sequences=(), size=1))
    for _ in range(2):
        interpreter.run("decode", cut, batches)
    tokens = interpreter.bring("decode", 1)
    interpreter.position.words[interpreter._main_word] = RUNNING
    tokens()
    interpreter.settle("decode")
    assert interpreter.position.words[interpreter._main_word] == IDLE
