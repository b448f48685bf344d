"""The door: D2's examples, D3's rules."""

from dataclasses import replace
from typing import Any

import pytest

from firmtoken.runtime.server.admission import Budget, admit, check_queue
from firmtoken.runtime.server.errors import ContextLengthExceeded, QueueFull


@pytest.fixture
def case_a(plan: Any) -> Any:
    """The 8,209 tokens that started this project."""
    return replace(
        plan, effective_context=8209, model_max=196_608, page_size=64, default_output=8192
    )


def test_the_longest_prompt_runs_for_one_token(case_a: Any) -> None:
    assert admit(8208, 500, case_a, param="prompt") == Budget(max_output=1, pages=129)


def test_one_token_more_is_refused_with_both_sides_in_tokens_and_pages(case_a: Any) -> None:
    with pytest.raises(ContextLengthExceeded) as refusal:
        admit(8760, None, case_a, param="messages")
    assert refusal.value.message == (
        "This model's maximum context length is 8209 tokens (129 pages of 64), but the prompt has"
        " 8760 tokens and at least 1 must follow (137 pages); shorten the prompt or raise"
        " `serving.context` in the profile (the model allows 196608)"
    )
    assert refusal.value.param == "messages"
    with pytest.raises(ContextLengthExceeded):
        admit(8209, None, case_a, param="messages")


def test_a_limit_of_memory_or_of_the_model_is_said(case_a: Any) -> None:
    with pytest.raises(ContextLengthExceeded, match="device_memory limits it, `ft plan` shows"):
        admit(9000, None, replace(case_a, limited_by="device_memory"), param="prompt")
    with pytest.raises(ContextLengthExceeded, match="the model itself has no more positions"):
        admit(9000, None, replace(case_a, model_max=8209, limited_by="model"), param="prompt")


def test_a_larger_output_than_the_context_leaves_is_lowered(case_a: Any) -> None:
    assert admit(209, 32_000, case_a, param="prompt").max_output == 8000


def test_an_output_that_nobody_asked_for_is_the_profiles(case_a: Any) -> None:
    assert admit(1, None, replace(case_a, default_output=100), param="prompt").max_output == 100


def test_pages_are_those_of_the_prompt_and_the_reserve(case_a: Any) -> None:
    assert admit(64, 8000, replace(case_a, output_reserve=64), param="prompt").pages == 2
    assert admit(64, 10, replace(case_a, output_reserve=64), param="prompt").pages == 2
    assert admit(54, 10, replace(case_a, output_reserve=64), param="prompt").pages == 1


def test_more_than_queue_waiting_requests_are_refused(plan: Any) -> None:
    short = replace(plan, queue=2, max_num_seqs=4)
    check_queue(new=1, waiting=1, running=4, plan=short)
    with pytest.raises(QueueFull, match="2 requests wait and 4 run: at most 2 may wait"):
        check_queue(new=1, waiting=2, running=4, plan=short)


def test_without_a_queue_free_sequences_are_still_used(plan: Any) -> None:
    none = replace(plan, queue=0, max_num_seqs=4)
    check_queue(new=1, waiting=0, running=3, plan=none)
    with pytest.raises(QueueFull):
        check_queue(new=1, waiting=1, running=3, plan=none)
