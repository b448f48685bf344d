"""The door: D2's examples, D3's rules."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firmtoken.compiler.errors import PlanError
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.server.admission import Budget, admit, check_queue
from firmtoken.runtime.server.errors import ContextLengthExceeded, QueueFull
from firmtoken.runtime.server.serving import ServingPlan, serving_plan
from firmtoken.schema.load import load_profile

TINY = Path(__file__).resolve().parents[3] / "profiles" / "tiny-cpu.yaml"


def compiled(*overrides: str) -> ServingPlan:
    return serving_plan(compile_profile(load_profile(str(TINY), overrides).profile, CARDS))


def refused(prompt_tokens: int, plan: ServingPlan) -> str:
    with pytest.raises(ContextLengthExceeded) as refusal:
        admit(prompt_tokens, None, plan, param="messages")
    assert refusal.value.param == "messages"
    return refusal.value.message


@pytest.fixture
def case_a(plan: Any) -> Any:
    """The 8,209 tokens that started this project."""
    return replace(
        plan,
        effective_context=8209,
        model_max=196_608,
        largest_context=131_072,
        page_size=64,
        default_output=8192,
    )


def test_the_longest_prompt_runs_for_one_token(case_a: Any) -> None:
    assert admit(8208, 500, case_a, param="prompt") == Budget(max_output=1, pages=129)


@pytest.mark.report(1, 10)
def test_one_token_more_is_refused_with_both_sides_in_tokens_and_pages(case_a: Any) -> None:
    assert refused(8760, case_a) == (
        "This model's maximum context length is 8209 tokens (129 pages of 64), but the prompt has"
        " 8760 tokens and at least 1 must follow (137 pages); shorten the prompt or raise"
        " `serving.context` in the profile, to at most 131072 on this machine"
        " (the model allows 196608)"
    )
    refused(8209, case_a)


@pytest.mark.report(10)
def test_what_leaves_no_room_for_a_larger_context_is_named(case_a: Any) -> None:
    full = replace(case_a, largest_context=8209)
    assert "shorten the prompt: `serving.pool` leaves no room for more" in refused(9000, full)
    memory = replace(full, limited_by="device_memory")
    assert "shorten the prompt: `device_memory` leaves no room for more" in refused(9000, memory)
    model = replace(full, model_max=8209, limited_by="model")
    assert "the model itself has no more positions" in refused(9000, model)


@pytest.mark.report(10)
@pytest.mark.parametrize(
    "overrides", [("serving.context=2k",), ("serving.context=auto", "hardware.cpu.memory=90MiB")]
)
def test_the_largest_context_that_a_refusal_names_fits_and_a_page_more_does_not(
    overrides: tuple[str, ...],
) -> None:
    plan = compiled(*overrides)
    largest = plan.largest_context
    assert plan.effective_context < largest < plan.model_max
    assert f"to at most {largest} on this machine" in refused(plan.effective_context, plan)
    machine = overrides[1:]
    assert compiled(f"serving.context={largest}", *machine).effective_context == largest
    with pytest.raises(PlanError, match="there is no room for a context"):
        compiled(f"serving.context={largest + 64}", *machine)


@pytest.mark.report(2)
def test_the_pool_bounds_a_prompt_whatever_the_model_allows() -> None:
    plan = compiled("serving.context=5000", "serving.pool=5000", "serving.requests=1")
    assert (plan.effective_context, plan.model_max) == (5000, 32_768)
    assert plan.pages == -(-5000 // plan.page_size)
    assert admit(4990, 32_000, plan, param="prompt").max_output == 10
    refused(5000, plan)


@pytest.mark.report(2)
def test_a_larger_output_than_the_context_leaves_is_lowered(case_a: Any) -> None:
    assert admit(209, 32_000, case_a, param="prompt").max_output == 8000


def test_an_output_that_nobody_asked_for_is_the_profiles(case_a: Any) -> None:
    assert admit(1, None, replace(case_a, default_output=100), param="prompt").max_output == 100


def test_pages_are_those_of_the_prompt_and_the_reserve(case_a: Any) -> None:
    assert admit(64, 8000, replace(case_a, output_reserve=64), param="prompt").pages == 2
    assert admit(64, 10, replace(case_a, output_reserve=64), param="prompt").pages == 2
    assert admit(54, 10, replace(case_a, output_reserve=64), param="prompt").pages == 1


def check(
    plan: Any,
    *,
    new: int = 1,
    waiting: int = 0,
    running: int = 0,
    new_tokens: int = 1,
    waiting_tokens: int = 0,
) -> None:
    check_queue(
        new=new,
        waiting=waiting,
        running=running,
        new_tokens=new_tokens,
        waiting_tokens=waiting_tokens,
        plan=plan,
    )


def test_more_than_queue_waiting_requests_are_refused(plan: Any) -> None:
    short = replace(plan, queue=2, max_num_seqs=4)
    check(short, waiting=1, running=4)
    with pytest.raises(QueueFull, match="2 requests wait and 4 run: at most 2 may wait"):
        check(short, waiting=2, running=4)


def test_without_a_queue_free_sequences_are_still_used(plan: Any) -> None:
    none = replace(plan, queue=0, max_num_seqs=4)
    check(none, running=3)
    with pytest.raises(QueueFull):
        check(none, waiting=1, running=3)


def test_more_prompt_tokens_than_may_wait_are_refused_with_both_numbers(plan: Any) -> None:
    check(plan, waiting=17, running=4, waiting_tokens=15_100, new_tokens=900)
    with pytest.raises(QueueFull) as refusal:
        check(plan, waiting=17, running=4, waiting_tokens=15_101, new_tokens=900)
    assert refusal.value.message == (
        "15101 prompt tokens wait and this request has 900: at most 16000 may wait"
        " (16 x the context)"
    )


def test_an_empty_queue_takes_what_the_number_of_prompts_allows(plan: Any) -> None:
    check(plan, new_tokens=999)
    check(plan, new=60, running=4, new_tokens=60 * 999)


def test_sixteen_prompts_of_the_longest_kind_may_wait() -> None:
    for context in (3, 8192):
        plan = compiled(f"serving.context={context}")
        assert plan.queue_tokens == 16 * context
        for waiting in range(16):
            check(
                plan,
                waiting=waiting,
                running=4,
                waiting_tokens=waiting * (context - 1),
                new_tokens=context - 1,
            )
