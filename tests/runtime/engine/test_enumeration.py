"""Small pools, every request: what the door admits completes on an empty engine, what it refuses never could."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.runtime.engine.simulation import Simulation
from tests.runtime.engine.tiny_limits import PLAIN, TINY

from firmtoken.compiler.admission import need
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.runtime.engine.limits import Limits
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.server.admission import admit
from firmtoken.runtime.server.errors import ContextLengthExceeded
from firmtoken.runtime.server.serving import ServingPlan, serving_plan
from firmtoken.schema.load import load_profile

PROFILE = Path(__file__).resolve().parents[3] / "profiles" / "tiny-cpu.yaml"


@pytest.fixture(scope="module")
def shipped() -> ServingPlan:
    return serving_plan(compile_profile(load_profile(str(PROFILE), ()).profile, CARDS))


def small_engines() -> Iterator[Limits]:
    """Page and pool sizes; the context is what the pool holds, or ends within its last page, or is the model's."""
    for page_size, num_pages in itertools.product((1, 2, 3), (1, 2, 3, 4)):
        most = page_size * num_pages
        for context in sorted({most, most - page_size + 1, (most + 1) // 2} - {0, 1}):
            for like, reserve in itertools.product((TINY, PLAIN), (1, 3)):
                yield replace(
                    like,
                    page_size=page_size,
                    pages=1 + num_pages,
                    prefill_span=page_size,
                    output_reserve=reserve,
                    effective_context=context,
                )


def door_of(limits: Limits, shipped: ServingPlan) -> ServingPlan:
    return replace(
        shipped,
        effective_context=limits.effective_context,
        page_size=limits.page_size,
        pages=limits.usable_pages,
        max_num_seqs=limits.max_num_seqs,
        default_output=3,
        output_reserve=limits.output_reserve,
    )


def ended(limits: Limits, requests: list[tuple[int, int]]) -> list[tuple[str, int]]:
    """Reason and output of each, all added to one empty engine at once."""
    simulation = Simulation(limits, random.Random(0), stop_token_ids=(), ends={})
    for prompt_tokens, max_output in requests:
        simulation.add([0] * prompt_tokens, max_output)
    for _ in range(50 * limits.effective_context * len(requests)):
        if simulation.scheduler.idle:
            break
        simulation.step()
    simulation.read(simulation.scheduler.collect())
    simulation.check_empty()
    assert simulation.ends is not None
    ends = [simulation.ends[request_id] for request_id in range(len(requests))]
    if len(requests) == 1:
        assert simulation.scheduler.preemptions == 0, "it gave way to itself"
    return [(end.reason, end.output_tokens) for end in ends]


@pytest.mark.report(1, 2, 6, 8)
def test_what_the_door_admits_completes_alone_and_what_it_refuses_never_could(
    shipped: ServingPlan,
) -> None:
    for limits in small_engines():
        door, context = door_of(limits, shipped), limits.effective_context
        asked = (None, *range(1, context + 2))
        for prompt_tokens, output in itertools.product(range(1, context + 2), asked):
            try:
                budget = admit(prompt_tokens, output, door, param="prompt")
            except ContextLengthExceeded:
                # Not even one token: more than the context, whatever else the engine holds.
                assert prompt_tokens + 1 > context
                assert ended(limits, [(prompt_tokens, 1)]) == [("error", 0)]
                continue
            assert budget.pages <= limits.usable_pages
            assert budget.max_output == min(output or 3, context - prompt_tokens)
            said = ended(limits, [(prompt_tokens, budget.max_output)])
            assert said == [("length", budget.max_output)]


@pytest.mark.report(6, 8)
def test_what_the_queue_takes_completes_alone_and_what_it_ends_at_once_could_not_be_held() -> None:
    for limits in small_engines():
        context, size = limits.effective_context, limits.page_size
        for prompt_tokens, output in itertools.product(range(1, context + 2), repeat=2):
            total = prompt_tokens + output
            fits = total <= context and need(prompt_tokens, output, size) <= limits.usable_pages
            said = ended(limits, [(prompt_tokens, output)])
            assert said == [("length", output) if fits else ("error", 0)]


@pytest.mark.report(7, 9)
@pytest.mark.parametrize("like", [TINY, PLAIN], ids=["hybrid", "plain"])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize(("page_size", "num_pages", "together"), [(1, 4, 3), (2, 2, 3), (2, 3, 2)])
def test_those_that_are_admitted_complete_together_too(
    page_size: int, num_pages: int, together: int, caching: bool, like: Limits
) -> None:
    context = page_size * num_pages
    limits = replace(
        like,
        page_size=page_size,
        pages=1 + num_pages,
        prefill_span=page_size,
        output_reserve=1,
        caching=caching,
        effective_context=context,
    )
    pairs = [(p, o) for p in range(1, context) for o in range(1, context - p + 1)]
    for requests in itertools.product(pairs, repeat=together):
        said = ended(limits, list(requests))
        assert said == [("length", output) for _, output in requests]
