"""Profiles as users of other servers wrote them, and a grid of contradictions: what `ft plan` says, and its truth.

`cases/NAME/profile.yaml` gives `expected.txt`: what is printed on stderr, or what matters of the plan. Hints are put to
the test: each change that one proposes must compile, and one step beyond a largest or least value must be refused.
Where a hint speaks in prose, `remedy.txt` holds the change, one a line: arguments of `--set`, or `OLD -> NEW`.
"""

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from tests.compiler.hint_changes import LITERAL, PROFILE, Change, diagnoses, proposed

from firmtoken.compiler.explain import context_line
from firmtoken.compiler.ledger import Ledger, Line
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure

CASES = Path(__file__).parent / "cases"
NAMES = sorted(path.parent.name for path in CASES.glob(f"*/{PROFILE}"))
REFUSED = sorted(
    path.parent.name
    for path in CASES.glob("*/expected.txt")
    if not path.read_text().startswith("exit 0\n")
)
SIZE = re.compile(r"[\d,.]+ (B|KiB|MiB|GiB|TiB)\b")

Answer = Plan | Failure
"""What `ft plan` has to say."""


def answer(argument: Path | str, *overrides: str) -> Answer:
    try:
        return compile_argument(str(argument), overrides).plan
    except Failure as failure:
        return failure


@cache
def answer_of(name: str) -> Answer:
    """The answer to a case, from within its folder: places are then the same on every machine."""
    with contextlib.chdir(CASES / name):
        return answer(PROFILE)


def plan_of_case(name: str) -> Plan:
    found = answer_of(name)
    assert isinstance(found, Plan), found
    return found


def refusal_of_case(name: str) -> Failure:
    found = answer_of(name)
    assert isinstance(found, Failure), name
    return found


def lines_of(side: Ledger) -> dict[str, Line]:
    return {line.name: line for line in side.lines}


# What is printed


@pytest.mark.parametrize("name", NAMES)
def test_the_answer_is_the_golden_one(name: str, golden: Callable[[Path, str], None]) -> None:
    found, folder = answer_of(name), CASES / name
    lines = [*(refused(found, folder) if isinstance(found, Failure) else abridged(found))]
    golden(folder / "expected.txt", "\n".join(lines) + "\n")


def refused(failure: Failure, folder: Path) -> Iterator[str]:
    yield f"exit {failure.exit_code}"
    yield failure.text.replace(str(folder), "CASE")
    if failure.hint:
        yield f"  hint: {failure.hint}"


def abridged(plan: Plan) -> Iterator[str]:
    yield "exit 0"
    yield context_line(plan)
    yield f"context: {plan.context.because}"
    yield f"experts: {plan.experts.because}"
    yield f"pages: {plan.kv_cache.pages:,} of {plan.kv_cache.page_size} for {plan.kv_cache.tokens:,} tokens"
    yield f"chunk: {plan.schedule.moe_chunk:,}, span {plan.schedule.prefill_span:,}"
    for side, ledger in (("device", plan.memory.device), ("host", plan.memory.host)):
        yield f"{side}: {ledger.total:,} of {ledger.budget:,}"
        for line in ledger.lines:
            if line.bytes * 50 >= ledger.total or line.name.startswith("workspace."):
                yield f"  {line.name:<18}{line.bytes:>16,}"
    for warning in plan.warnings:
        yield f"warning {warning.code}: {warning.message}\n  hint: {warning.hint}"


@pytest.mark.parametrize("name", NAMES)
def test_a_case_says_where_it_comes_from(name: str) -> None:
    text = (CASES / name / PROFILE).read_text()
    assert text.startswith("# ")
    row = re.match(r"row(\d+)-", name)
    if row is not None:
        assert re.search(rf"\b[Rr]ow {int(row[1])}\b", text.splitlines()[0])


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_one_diagnosis_with_field_numbers_and_hint(name: str) -> None:
    found = refusal_of_case(name)
    assert found.exit_code in (2, 3)
    (one,) = diagnoses(found.text)
    assert one.hint, one
    told_what = one.message + one.hint
    values = LITERAL.search(told_what) or re.search(r"\d", told_what)
    assert values, "neither a number nor what may be written"
    if "needed" in one.message or "must be pinned" in one.message:
        assert len(SIZE.findall(one.message)) >= 2


# Hints are true


@pytest.mark.report(10, 26)
@pytest.mark.slow  # a hundred compiles more; run it when a hint, a limit or a ledger changes
@pytest.mark.parametrize("name", REFUSED)
def test_what_the_hint_proposes_compiles_and_a_step_beyond_does_not(
    name: str, tmp_path: Path
) -> None:
    found = refusal_of_case(name)
    changes = [change for one in diagnoses(found.text) for change in proposed(one, CASES / name)]
    assert changes, "nobody can follow this hint"
    assert [change for change in changes if not holds(change, tmp_path)] == []


def holds(change: Change, scratch: Path) -> bool:
    profile = scratch / PROFILE
    profile.write_text(change.text)
    return isinstance(answer(profile, *change.overrides), Plan) == change.fits


# Rows of reports


@pytest.mark.report(1)
def test_96_gb_and_minimax_hold_more_than_the_pool_that_was_reported() -> None:
    asked, auto = (
        plan_of_case("row01-minimax-96gb-pool-8209"),
        plan_of_case("row01-minimax-96gb-auto"),
    )
    assert (asked.context.effective, asked.admission.max_prompt_tokens) == (8209, 8208)
    assert asked.kv_cache.pages == -(-8209 // 16) + 1
    assert auto.context.effective >= 64 * 1024  # eight times the pool that was reported


@pytest.mark.report(8)
def test_the_sentinel_is_a_page_beside_the_69_that_requests_may_hold() -> None:
    plan = plan_of_case("row08-pool-of-69-pages")
    assert (plan.kv_cache.pages, plan.context.effective) == (69 + 1, 69 * 16)


@pytest.mark.report(13)
def test_a_context_below_the_floor_is_told() -> None:
    assert plan_of_case("row13-32gb-defaults").warnings == ()
    codes = [warning.code for warning in plan_of_case("row13-floor-is-said").warnings]
    assert codes == ["floor_lowered", "small_context"]


@pytest.mark.report(18)
def test_an_explicit_pool_is_reserved_before_experts() -> None:
    for name, pages in (("row18-48gb-explicit-pool", 4096 + 4), ("row18-64-pages-of-16", 64 + 1)):
        line = lines_of(plan_of_case(name).memory.device)["kv_pages"]
        assert (line.count, line.bytes) == (pages, pages * line.unit_bytes)


@pytest.mark.report(20, 25, 37)
def test_the_largest_legal_launch_is_in_the_ledger_of_a_refusal() -> None:
    booted = plan_of_case("row20-16gb-first-long-prompt").memory.device
    assert lines_of(booted)["activations"].bytes > 100 * 2**20 and booted.free >= 0
    assert re.search(r"activations 5\.\d\d GiB", refusal_of_case("row25-16gb-chunk-of-262144").text)
    cold, short = plan_of_case("row37-8gb-cold-128k"), plan_of_case("row10-8gb-prompt-of-16535")
    activations = [lines_of(plan.memory.device)["activations"].bytes for plan in (cold, short)]
    assert activations[0] >= activations[1] > 0


@pytest.mark.report(22)
def test_the_fixed_workspace_of_an_attention_backend_is_a_line() -> None:
    plan = plan_of_case("row22-6gb-workspace")
    needed = {row.workspace: row for row in plan.kernels if row.op == "attention"}
    assert {name: row.kernel for name, row in needed.items()} == {
        "split_kv": "triton_split_kv",
        "mixer_tile": "triton_prefill_fp8",
    }
    line = lines_of(plan.memory.device)["workspace.split_kv"]
    # A row of 256, its maximum and its sum in fp32 for each of 16 heads and 2 x 128 / 2 parts.
    assert line.bytes == needed["split_kv"].workspace_bytes == 16 * 128 * (256 + 2) * 4
    assert "triton_split_kv" in line.because


@pytest.mark.report(22)
def test_what_a_named_kernel_needs_is_taken_from_the_experts() -> None:
    own = plan_of_case("row22-6gb-workspace")
    plan = answer(
        CASES / "row22-6gb-workspace" / PROFILE, "kernels.attention.prefill=flashinfer_fa2"
    )
    assert isinstance(plan, Plan)
    assert plan.experts.slots < own.experts.slots
    # 16 heads of 256 in tiles of 64 for 2 x 128 / 2 blocks are 128 MiB (hardware.md 1.3), and 16 MiB of slack.
    line = lines_of(plan.memory.device)["workspace.flashinfer"]
    assert line.bytes == (128 + 16) * 2**20
    assert "flashinfer_fa2" in line.because


@pytest.mark.report(23, 24)
def test_the_chunk_is_what_was_asked_and_never_follows_from_the_pool() -> None:
    small, large = plan_of_case("row23-32gb-pool-96k"), plan_of_case("row23-32gb-pool-150016")
    assert small.schedule.moe_chunk == large.schedule.moe_chunk
    activations = [lines_of(plan.memory.device)["activations"].bytes for plan in (small, large)]
    assert activations[0] == activations[1]
    assert plan_of_case("row24-chunk-4096").schedule.moe_chunk == 4096


@pytest.mark.report(27, 32)
def test_minimax_on_64_gb_is_refused_in_under_a_second() -> None:
    start = time.process_time()
    found = answer(CASES / "host-too-small-for-bank" / PROFILE)
    assert time.process_time() - start < 1
    assert isinstance(found, Failure) and found.exit_code == 3
    assert "120.71 GiB" in found.text and "59.60 GiB" in found.text


@pytest.mark.report(38)
def test_keys_and_values_are_counted_by_architecture() -> None:
    plan = plan_of_case("row38-hybrid-kv")
    full_layers, heads, width, both = 10, 2, 256, 2
    assert plan.kv_cache.bytes_per_token == full_layers * heads * width * both


def test_memory_is_stranded_by_explicit_values_only_and_that_is_told_with_its_price() -> None:
    told = {
        name: [f"{warning.code} {warning.message}" for warning in plan_of_case(name).warnings]
        for name in NAMES
        if name.startswith("stranded-")
    }
    assert told.pop("stranded-never-by-auto") == []
    slots = told["stranded-slots-1024"][0]
    assert "GiB of the device" in slots and "9,216 more experts" in slots and "tokens/s" in slots
    assert all(text.startswith("stranded_memory ") for texts in told.values() for text in texts)
    assert [len(texts) for texts in told.values()] == [1, 2, 1]
