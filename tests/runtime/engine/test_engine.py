"""Engines built from plans: what is batched, chunked, cached, offloaded or resumed says what a lone cold run says."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.batches import BatchBuilder, Batches, Cut
from firmtoken.runtime.engine.invariants import InvariantBroken
from firmtoken.runtime.engine.messages import Admitted, Done, Log, Sampling, Tokens
from firmtoken.runtime.engine.program import MAX_KEPT
from firmtoken.runtime.engine.work import Span

Prompt = Callable[..., list[int]]
SAMPLED = Sampling(temperature=0.8, top_p=0.95, top_k=40, min_p=0.01, seed=11)
LENGTHS = (1, 63, 64, 65, 129, 300, 700)


def uncached(plan: Plan) -> Plan:
    """Every prompt is computed from its first token."""
    return replace(plan, kv_cache=replace(plan.kv_cache, type="none"))


@pytest.fixture
def cold(start, prompt: Prompt) -> dict[int, list[int]]:
    """Text of each length's prompt, alone, resident, without a prefix cache."""
    bench = start("tiny-cpu-resident", change=uncached)
    return {length: bench.ask(prompt(length, length), 12) for length in LENGTHS}


def ask_all(bench, prompt: Prompt) -> dict[int, list[int]]:
    for length in LENGTHS:
        bench.add(length, prompt(length, length), 12)
    bench.drain()
    return {length: bench.text(length) for length in LENGTHS}


@pytest.mark.report(57, 58)
def test_offloaded_batched_and_chunked_runs_say_what_a_lone_resident_run_says(
    start, prompt: Prompt, cold: dict[int, list[int]]
) -> None:
    whole = start()
    assert ask_all(whole, prompt) == cold
    assert whole.logs("decode 4 of 4") and whole.engine.stats().expert_misses > 0
    chunked = start(
        "tiny-cpu", "schedule.prefill_chunk=64", "schedule.prefill_span=128", "serving.context=2k"
    )
    assert ask_all(chunked, prompt) == cold
    assert len(chunked.logs(" 300[")) == 3 and chunked.logs("prefill 128 tokens: ")
    resident = start("tiny-cpu-resident", "schedule.prefill_chunk=128")
    assert ask_all(resident, prompt) == cold


@pytest.mark.report(53)
def test_a_hit_says_what_a_cold_run_says(start, prompt: Prompt, cold: dict[int, list[int]]) -> None:
    bench = start()
    assert ask_all(bench, prompt) == cold
    hits = {length: bench.ask(prompt(length, length), 12) for length in LENGTHS}
    assert hits == cold
    admitted = [message for message in bench.messages if isinstance(message, Admitted)]
    # The last page boundary at or below prompt - 1.
    assert [message.cached_tokens for message in admitted[-7:]] == [0, 0, 0, 64, 128, 256, 640]


def test_the_next_turn_continues_from_the_end_of_the_last(start, prompt: Prompt) -> None:
    bench, lone = start(), start("tiny-cpu-resident", change=uncached)
    first = prompt(100, 1)
    answer = bench.ask(first, 40)
    second = first + answer + prompt(20, 2)
    assert bench.ask(second, 10) == lone.ask(second, 10)
    assert bench.engine.scheduler.cached_tokens == 128  # 139 tokens were in the cache


def test_sampling_depends_on_seed_and_position_only(start, prompt: Prompt) -> None:
    alone, together = start("tiny-cpu-resident", change=uncached), start()
    alone.add(1, prompt(80, 5), 20, SAMPLED)
    alone.drain()
    for request_id in (1, 2, 3):
        together.add(request_id, prompt(80, 5 + (request_id > 1)), 20, SAMPLED)
    together.drain()
    assert together.text(1) == alone.text(1)
    assert together.text(2) == together.text(3) != together.text(1)


def small_pool(plan: Plan) -> Plan:
    """Pages run out: admission reserves one page of output only."""
    return replace(plan, admission=replace(plan.admission, output_reserve=1))


@pytest.mark.report(9, 14)
def test_preempted_requests_say_what_lone_ones_say(start, prompt: Prompt) -> None:
    bench = start("tiny-cpu", "serving.context=512", "serving.pool=512", change=small_pool)
    lone = start("tiny-cpu-resident", change=uncached)
    for request_id in range(4):
        bench.add(request_id, prompt(70, request_id), 100)
    bench.drain()
    assert bench.engine.scheduler.preemptions > 0
    for request_id in range(4):
        assert bench.text(request_id) == lone.ask(prompt(70, request_id), 100)
        assert bench.end(request_id).reason == "length"


def test_a_preempted_request_goes_on_from_its_shadow_state(start, prompt: Prompt) -> None:
    bench = start(
        "tiny-cpu",
        "serving.context=256",
        "serving.pool=256",
        "serving.requests=2",
        change=small_pool,
    )
    lone = start("tiny-cpu-resident", change=uncached)
    bench.add(1, prompt(60, 1), 72)
    bench.add(2, prompt(60, 2), 150)
    bench.drain()
    resumed = [m for m in bench.messages if isinstance(m, Admitted) and m.resumed]
    assert [(m.request_id, m.cached_tokens) for m in resumed] == [(2, 60)]  # of its prompt
    assert len(bench.logs(" 2[128:")) == 1
    assert bench.text(2) == lone.ask(prompt(60, 2), 150)


def test_decode_goes_on_at_the_yields_of_a_long_prompt(start, prompt: Prompt) -> None:
    def often(plan: Plan) -> Plan:
        return replace(plan, schedule=replace(plan.schedule, decode_every_units=2))

    bench = start(
        "tiny-cpu", "schedule.prefill_chunk=128", "schedule.prefill_span=512", change=often
    )
    lone = start("tiny-cpu-resident", change=uncached)
    bench.add(1, prompt(50, 1), 60)
    bench.engine.step()
    bench.add(2, prompt(500, 2), 5)
    bench.engine.step()  # one decode step between two spans
    before = len(bench.text(1))
    bench.engine.step()
    assert bench.logs("prefill 500 tokens")
    assert len(bench.text(1)) - before >= 4
    bench.drain()
    assert bench.text(1) == lone.ask(prompt(50, 1), 60)
    assert bench.text(2) == lone.ask(prompt(500, 2), 5)


def test_a_checked_engine_names_what_does_not_hold(start, prompt: Prompt) -> None:
    bench = start("tiny-cpu-resident", "serving.context=512")
    bench.engine.scheduler.holdings.pages.take(1)  # a planted leak
    with pytest.raises(InvariantBroken, match="page 1 has 1 references and 0 holders"):
        bench.ask(prompt(20), 2)


def test_a_request_stops_at_its_stop_token_and_says_so(start, prompt: Prompt) -> None:
    bench = start()
    text = bench.ask(prompt(40, 9), 10)
    bench.add(1, prompt(40, 9), 10, stop=(text[3],))
    bench.drain()
    end = bench.end(1)
    assert bench.text(1) == text[:4] and (end.reason, end.output_tokens) == ("stop", 4)


def test_nothing_is_kept_of_requests_that_ended(start, prompt: Prompt) -> None:
    bench = start()
    for request_id in range(20):
        bench.add(request_id, prompt(30 + request_id, request_id), 1 + request_id % 3)
    bench.drain()
    engine = bench.engine
    assert (engine._batches._tables, engine.scheduler._sequences) == ({}, {})
    interpreter = bench.interpreter
    assert len(interpreter._bound) <= MAX_KEPT and len(interpreter._flats) <= MAX_KEPT
    assert not interpreter.held


def test_too_long_a_request_ends_at_once_with_the_numbers(start, prompt: Prompt) -> None:
    bench = start("tiny-cpu", "serving.context=128")
    bench.add(1, prompt(120), 9)
    assert bench.end(1).reason == "error" and "129 tokens need 3 pages" in bench.end(1).message
    assert len(bench.ask(prompt(120), 8)) == 8


class ForgetsTheShadow(BatchBuilder):
    """A planted fault: the shadow state is never written."""

    def span(self, span: Span, cut: Cut) -> Batches:
        batches = super().span(span, cut)
        return {
            key: replace(
                batch,
                segments=tuple(replace(segment, boundary=0) for segment in batch.segments),
            )
            for key, batch in batches.items()
        }


@pytest.mark.report(53)
def test_the_comparison_catches_a_hit_from_a_wrong_state(start, prompt: Prompt) -> None:
    bench = start()
    bench.engine._batches = ForgetsTheShadow(64, hybrid=True)
    first = bench.ask(prompt(300, 300), 12)
    assert bench.ask(prompt(300, 300), 12) != first


def test_tokens_of_a_step_are_delivered_before_the_next_and_a_batch_is_announced_once(
    start, prompt: Prompt
) -> None:
    bench = start()
    bench.ask(prompt(40, 1), 5)
    ends = bench.deliveries
    starts = [0, *ends]
    parcels = [bench.messages[first:end] for first, end in zip(starts, ends, strict=False)]
    kinds = [[type(message) for message in parcel] for parcel in parcels if parcel]
    assert kinds == [
        [Admitted, Log],
        [Tokens],  # the first token waits for nobody
        [Log],  # the decode batch, before its first launch
        [Tokens],
        [Tokens],
        [Tokens],
        [Tokens, Done],
    ]


def test_no_token_waits_until_states_are_copied_for_later_requests(
    start, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start("tiny-cpu-resident")
    run = bench.interpreter.run
    untold: list[int] = []

    def noted(name: str, *arguments: object) -> None:
        if name == "park":
            told = bench.messages[: bench.deliveries[-1]]
            untold.append(len(drawn) - sum(isinstance(message, Tokens) for message in told))
        run(name, *arguments)

    bring = bench.interpreter.bring
    drawn: list[str] = []

    def brought(program: str, count: int) -> Callable[[], list[int]]:
        drawn.append(program)
        return bring(program, count)

    monkeypatch.setattr(bench.interpreter, "run", noted)
    monkeypatch.setattr(bench.interpreter, "bring", brought)
    bench.ask(prompt(100), 80)  # once behind the prompt, once at the end
    assert untold == [0, 0]


def test_tokens_inside_an_open_span_are_delivered_at_once(start, prompt: Prompt) -> None:
    def often(plan: Plan) -> Plan:
        return replace(plan, schedule=replace(plan.schedule, decode_every_units=2))

    bench = start(
        "tiny-cpu", "schedule.prefill_chunk=128", "schedule.prefill_span=512", change=often
    )
    bench.add(1, prompt(50, 1), 60)
    bench.engine.step()
    bench.add(2, prompt(500, 2), 5)
    bench.engine.step()
    waits: list[int] = []
    bench.at_poll = lambda: waits.append(len(bench.messages) - bench.deliveries[-1])
    bench.engine.step()
    assert waits and set(waits) == {0}


def test_an_empty_prompt_ends_with_an_error_and_harms_nobody(start, prompt: Prompt) -> None:
    bench = start()
    bench.add(1, [])
    assert bench.end(1).reason == "error"
    assert bench.end(1).message == "the prompt is empty: a request needs at least one token"
    assert len(bench.ask(prompt(20), 3)) == 3
