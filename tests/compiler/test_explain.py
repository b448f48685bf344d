"""What people read: one greppable line, pages of 100 columns, reasons by path."""

import re
from collections.abc import Callable

import pytest

from firmtoken.compiler.explain import UnknownPath, context_line, explain, summary, table
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.reasons import OVERVIEW

Plans = Callable[..., Plan]
PROFILES = ("tiny-cpu", "tiny-cpu-resident", "4090-qwen", "h200-qwen")


@pytest.mark.parametrize("name", PROFILES)
def test_the_line_is_one_greppable_line(plan_of: Plans, name: str) -> None:
    line = context_line(plan_of(name))
    assert re.match(
        r"effective context [\d,]+ of [\d,]+ \((?:as asked|limited by [a-z ]+)\) \| "
        r"experts [\d,]+ of [\d,]+ resident \(\d[\d.]* %\) \| pool [\d,]+ ",
        line,
    )
    assert "\n" not in line
    assert line.endswith("tok/s (estimated)")


@pytest.mark.parametrize("name", PROFILES)
def test_pages_fit_100_columns_without_colour(plan_of: Plans, name: str) -> None:
    plan = plan_of(name)
    for text in (table(plan), explain(plan)):
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) <= 100 or text.splitlines()[0] == context_line(plan)
        assert all(len(line) <= 100 for line in text.splitlines()[1:])


def test_the_table_has_both_ledgers_to_the_byte(tiny_plan: Plan) -> None:
    text = table(tiny_plan)
    for line in (*tiny_plan.memory.device.lines, *tiny_plan.memory.host.lines):
        assert f"{line.bytes:,}" in text
        assert line.name in text
    for row in tiny_plan.frontier:
        assert f"{row.context:,}" in text
    for choice in tiny_plan.kernels:
        assert choice.kernel in text


def test_the_summary_begins_with_the_line(tiny_plan: Plan) -> None:
    assert summary(tiny_plan).startswith(context_line(tiny_plan))
    assert "<- chosen" in summary(tiny_plan)


def test_warnings_are_in_the_summary(plan_of: Plans) -> None:
    plan = plan_of("4090-qwen", "experts.slots=1024", "serving.requests=1", "serving.context=32k")
    assert "warning stranded_memory" in summary(plan)


def test_a_kernel_is_explained_with_its_alternatives(plan_of: Plans) -> None:
    text = explain(plan_of("4090-qwen"), "kernels.attention.prefill")
    assert "because: " in text
    assert "not flashinfer_fa3: ends at compute capability" in text or "flashinfer_fa3" in text
    assert "decode" not in text.splitlines()[1]


def test_a_ledger_line_is_explained(tiny_plan: Plan) -> None:
    text = explain(tiny_plan, "memory.device.lines.kv_pages")
    assert "tokens in pages of 64" in text
    assert "unit_bytes" in text
    assert "experts.cache" in explain(tiny_plan, "memory.device.lines.experts.cache")


@pytest.mark.parametrize(
    "path",
    [
        "context",
        "context.effective",
        "experts",
        "kv_cache",
        "memory.host",
        "kernels",
        "kernels.linear",
        "streams",
        "schedule.on_demand_below.warm",
        "estimates",
        "frontier.16384",
        "programs.decode",
        "programs.decode.body",
        "buffers.kv",
        "spaces.weights",
        "weights.lm_head",
    ],
)
def test_every_part_can_be_asked_for(tiny_plan: Plan, path: str) -> None:
    assert explain(tiny_plan, path).startswith(path)


def test_an_op_of_a_layer_is_explained(tiny_plan: Plan) -> None:
    text = explain(tiny_plan, "programs.decode.L03.attention")
    assert "attention by torch_blocks on `main`" in text
    assert "kv[3,1]" in text
    assert "not torch_sdpa: usable" in text
    assert "gdn by " in explain(tiny_plan, "programs.prefill.L00")


def test_a_layer_or_op_that_is_not_there_is_named(tiny_plan: Plan) -> None:
    for path, hint in (
        ("programs.decode.L03.atention", "did you mean `attention`?"),
        ("programs.decode.L08", "layers are `L00` to `L07`"),
        ("programs.train.L00", "there are `decode`, `prefill`, `extend`, `park`"),
    ):
        with pytest.raises(UnknownPath) as caught:
            explain(tiny_plan, path)
        assert caught.value.hint == hint


def test_an_unknown_path_names_what_is_near(tiny_plan: Plan) -> None:
    with pytest.raises(UnknownPath) as caught:
        explain(tiny_plan, "memory.device.lines.kv_page")
    assert caught.value.message == "`memory.device.lines` has no `kv_page`"
    assert caught.value.hint == "did you mean `kv_pages`?"
    with pytest.raises(UnknownPath, match="it has no parts"):
        explain(tiny_plan, "context.effective.more")
    with pytest.raises(UnknownPath) as caught:
        explain(tiny_plan, "experts.slots_per_layer.8")
    assert caught.value.hint == "it has `0` to `7`"


def test_all_of_it_has_every_choice_but_the_long_list_of_kernels(tiny_plan: Plan) -> None:
    text = explain(tiny_plan)
    for heading in ("context", "experts", "kv_cache", "memory.device", "streams"):
        assert f"\n{heading}" in f"\n{text}"
    assert "\nkernels" not in text
    assert "not torch_sdpa: usable" in explain(tiny_plan, "kernels")


def test_a_path_that_is_none_is_answered_with_all_that_are(tiny_plan: Plan) -> None:
    with pytest.raises(UnknownPath) as refused:
        explain(tiny_plan, "speed")
    for name in (*OVERVIEW, "kernels"):
        assert f"`{name.split('.')[0]}`" in refused.value.hint


def test_a_limit_is_told_in_words(plan_of: Plans) -> None:
    assert " (as asked) | " in context_line(plan_of("4090-qwen"))
    assert " (limited by model) | " in context_line(plan_of("4090-qwen", "serving.context=max"))
