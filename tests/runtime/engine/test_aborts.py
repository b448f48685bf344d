"""An abort ends its request exactly once, in every phase, and gives everything back within one unit of work."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.messages import Abort, Tokens

Prompt = Callable[..., list[int]]


def often(plan: Plan) -> Plan:
    """A decode step at every other unit of a span."""
    return replace(plan, schedule=replace(plan.schedule, decode_every_units=2))


def abort(bench: Any) -> None:  # the conftest's Bench
    """Twice: the second time is none of our business."""
    bench.at_poll = lambda: None
    bench.engine.handle(Abort(request_id=2))
    bench.engine.handle(Abort(request_id=2))


def before_it_is_admitted(bench: Any, prompt: Prompt) -> None:
    for request_id in (3, 4):  # they take the other two places
        bench.add(request_id, prompt(40, request_id), 4)
    bench.engine.step()
    bench.add(2, prompt(80, 2), 30)
    bench.engine.step()
    assert bench.engine.stats().waiting == 1
    abort(bench)


def in_a_span_with_others(bench: Any, prompt: Prompt) -> None:
    bench.add(3, prompt(40, 3), 4)
    bench.add(2, prompt(150, 2), 30)
    bench.at_poll = lambda: abort(bench)


def in_a_span_of_its_own(bench: Any, prompt: Prompt) -> None:
    bench.add(2, prompt(300, 2), 30)
    bench.at_poll = lambda: abort(bench)


def between_two_spans(bench: Any, prompt: Prompt) -> None:
    bench.add(2, prompt(300, 2), 30)
    bench.step_until(lambda: bench.logs(" 2[0:256]"))
    abort(bench)


def while_it_decodes(bench: Any, prompt: Prompt) -> None:
    bench.add(2, prompt(80, 2), 30)
    bench.step_until(lambda: len(bench.text(2)) >= 3)
    abort(bench)


def while_it_decodes_inside_a_span(bench: Any, prompt: Prompt) -> None:
    bench.add(2, prompt(80, 2), 30)
    bench.step_until(lambda: bench.text(2))
    bench.add(3, prompt(200, 3), 4)

    def at_poll() -> None:
        if len(bench.text(2)) == 3:
            assert bench.engine.scheduler.open_span is not None
            abort(bench)

    bench.at_poll = at_poll


MOMENTS = (
    before_it_is_admitted,
    in_a_span_with_others,
    in_a_span_of_its_own,
    between_two_spans,
    while_it_decodes,
    while_it_decodes_inside_a_span,
)


@pytest.mark.report(6)
@pytest.mark.parametrize("moment", MOMENTS)
def test_it_ends_once_gives_everything_back_and_harms_nobody(
    start, prompt: Prompt, moment: Callable[[Any, Prompt], None]
) -> None:
    bench = start(
        "tiny-cpu",
        "schedule.prefill_chunk=128",
        "schedule.prefill_span=256",
        "serving.context=512",
        "serving.pool=1k",
        "serving.requests=3",
        change=often,
    )
    bench.add(1, prompt(90, 1), 30)
    bench.engine.step()
    moment(bench, prompt)
    bench.drain()
    assert bench.end(2).reason == "abort"
    at = next(i for i, m in enumerate(bench.messages) if m is bench.end(2))
    later = [m for m in bench.messages[at:] if isinstance(m, Tokens)]
    assert all(request_id != 2 for m in later for request_id, _ in m.items)
    stats = bench.engine.stats()
    assert stats.pages_free + stats.pages_cached == stats.pages_total
    assert stats.state_slots_free == bench.plan.kv_cache.state_slots - 1
    first = bench.text(1)
    assert bench.end(1).reason == "length"
    bench.engine.scheduler.holdings.retire_cache()
    assert bench.ask(prompt(90, 1), 30) == first
    assert len(bench.ask(prompt(300, 2), 2)) == 2


def memory_of(bench: Any, pages: tuple[int, ...], slots: tuple[int, int]) -> list[torch.Tensor]:
    """What is in these pages and state slots, of every layer."""
    views, found = bench.interpreter.views, []
    for layer, kind in enumerate(bench.plan.model.layer_kinds):
        if kind == "full":
            found.append(views.tensor(Value("kv", (layer, 0)))[:, list(pages)].clone())
        else:
            for name in ("conv_state", "recurrent_state"):
                found.append(views.tensor(Value(name, (layer, 0)))[list(slots)].clone())
    return found


def test_from_the_next_unit_on_nothing_is_written_where_the_aborted_one_was(
    start, prompt: Prompt
) -> None:
    bench = start("tiny-cpu", "serving.context=512", "serving.pool=1k")
    bench.add(1, prompt(90, 1), 3)
    bench.add(2, prompt(300, 2), 3)
    polls = 0
    held: tuple[tuple[int, ...], tuple[int, int]] = ((), (0, 0))
    left: list[torch.Tensor] = []

    def look() -> None:
        nonlocal polls, held, left
        polls += 1
        if polls == 2:  # layers 2 to 7 are still to come: two with pages, four with states
            sequence = bench.engine.scheduler._sequences[2]
            held = sequence.pages, (sequence.live, sequence.shadow)
            free = bench.engine.stats().pages_free
            bench.engine.handle(Abort(request_id=2))
            stats = bench.engine.stats()
            assert stats.pages_free == free + len(held[0]) and len(held[0]) == 5
            left = memory_of(bench, *held)
        elif polls > 2:
            for was, now in zip(left, memory_of(bench, *held), strict=True):
                assert torch.equal(was, now)

    bench.at_poll = look
    bench.drain()
    assert polls == 8 and bench.end(2).reason == "abort"
    for was, now in zip(left, memory_of(bench, *held), strict=True):
        assert torch.equal(was, now)
