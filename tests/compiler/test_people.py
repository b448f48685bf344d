"""What people are told: every number again from the plan's JSON, no line too long, no word before its meaning."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firmtoken.compiler.conversation import conversation_lengths
from firmtoken.compiler.explain import opening, summary, table
from firmtoken.compiler.explanation import explanation
from firmtoken.compiler.people import expectations, not_runnable
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_to_json
from firmtoken.runtime.kernels import CARDS
from firmtoken.schema.load import load_profile

Plans = Callable[..., Plan]
Golden = Callable[[Path, str], None]
Data = dict[str, Any]  # Any: JSON has no narrower type
CASES = Path(__file__).parent / "cases"
PROFILES = Path(__file__).resolve().parents[2] / "profiles"
SHIPPED = sorted(path.stem for path in PROFILES.glob("*.yaml"))
WISHES = (
    *((name,) for name in SHIPPED),
    ("4090-qwen", "cache.type=none"),
    ("4090-qwen", "serving.pool=97000"),  # a third agent's answers do not fit
    ("4090-qwen", "serving.context=max", "serving.pool=1M"),
    ("4090-qwen", "experts.placement=offload"),
    ("pro6000-minimax", "serving.requests=1"),
    ("tiny-cpu", "serving.context=20", "serving.requests=1"),
    ("tiny-cpu", "serving.context=2"),
    ("tiny-cpu-resident", "hardware.host.banks=engine"),
)
GIB = 2**30
SCALE = {"s": 1.0, "ms": 1e-3, "B": 1.0, "KiB": 2**10, "MiB": 2**20, "GiB": GIB}
NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?)(?: (s|ms|B|KiB|MiB|GiB)\b)?")


def told(plan: Plan, label: str) -> list[tuple[float, bool]]:
    """The numbers of one sentence in seconds and bytes, in their order, and whether they had a unit."""
    sentence = dict(expectations(plan))[label]
    return [
        (float(digits.replace(",", "")) * SCALE.get(unit, 1.0), bool(unit))
        for digits, unit in NUMBER.findall(sentence)
    ]


def lines_of(ledger: Data) -> dict[str, int]:
    return {line["name"]: line["bytes"] for line in ledger["lines"]}


def speed_due(data: Data) -> list[float]:
    found, estimates = data["estimates"]["conversation"], data["estimates"]
    turn = [found["turn_tokens"], found["turn_s"]] if found["turn_tokens"] else []
    return [found["prompt_tokens"], found["prompt_s"], *turn, estimates["decode_tokens_per_s"]]


def at_once_due(data: Data) -> list[float]:
    """D2: any R requests whose lengths sum to the pool fit."""
    found, cache = data["estimates"]["conversation"], data["kv_cache"]
    requests, context = data["schedule"]["max_num_seqs"], data["context"]["effective"]
    page = cache["page_size"]
    length = (
        found["prompt_tokens"]
        + found["answer_tokens"]
        + found["turn_tokens"]
        + found["answer_tokens"]
    )
    agents = min(requests, (cache["pages"] - 1) // -(-length // page))
    if requests * context <= cache["tokens"]:
        return [agents, requests]
    pool = cache["tokens"]
    return [agents, pool, requests, pool // requests, pool // context, context]


def experts_due(data: Data) -> list[float]:
    experts = data["experts"]
    missing = experts["total"] - experts["slots"]
    if experts["placement"] == "resident" or not missing:
        return [experts["total"]]
    link, below = data["hardware"]["link"], data["schedule"]["on_demand_below"]
    moved = missing * experts["slot_bytes"]
    return [
        *(experts["slots"], experts["total"], data["schedule"]["prefill_span"], missing),
        *(moved, moved / link["h2d"], below["cold"], below["warm"]),
        data["estimates"]["bytes_per_token"]["link"],
    ]


def ram_due(data: Data) -> list[float]:
    host = data["memory"]["host"]
    lines, total = lines_of(host), data["experts"]["total"]
    bank = [lines["bank"], total] if lines.get("bank") else []
    others = [lines[name] for name in ("restart_copy", "snapshots") if lines.get(name)]
    return [host["total"], host["capacity"], *bank, *others]


DUE: dict[str, Callable[[Data], list[float]]] = {
    "speed": speed_due,
    "at once": at_once_due,
    "client": lambda data: [data["context"]["effective"]],
    "experts": experts_due,
    "RAM": ram_due,
}


@pytest.mark.parametrize("wish", WISHES, ids=" ".join)
def test_every_number_people_are_told_follows_from_the_plan(
    plan_of: Plans, wish: tuple[str, ...]
) -> None:
    plan = plan_of(*wish)
    data = json.loads(plan_to_json(plan))
    assert [label for label, _ in expectations(plan)] == list(DUE)
    for label, due in DUE.items():
        # Counts are exact; times, sizes and rates are told with two digits at least.
        for (found, has_unit), number in zip(told(plan, label), due(data), strict=True):
            exact = isinstance(number, int) and not has_unit
            assert found == pytest.approx(number, rel=0 if exact else 0.06), label


@pytest.mark.parametrize("name", SHIPPED)
def test_no_page_is_wider_than_100_columns_and_what_cannot_run_is_said_first(
    plan_of: Plans, name: str
) -> None:
    plan = plan_of(name)
    profile = load_profile(str(PROFILES / f"{name}.yaml")).profile
    for path in ("memory", "kernels", "streams", "kv_cache", "experts", "programs.decode.L03"):
        lines = explanation(profile, plan, CARDS, path).splitlines()
        assert max(map(len, lines)) <= 100
    for text in (summary(plan), table(plan), explanation(profile, plan, CARDS)):
        first, *lines = text.splitlines()
        assert "\x1b" not in text
        assert first.startswith("effective context ")
        assert max(map(len, lines)) <= 100
        assert lines[0].startswith("cannot run yet: ") == bool(not_runnable(plan))


@pytest.mark.parametrize("name", SHIPPED)
def test_every_text_about_a_plan_begins_alike(plan_of: Plans, name: str) -> None:
    plan = plan_of(name)
    begins = "\n\n".join("\n".join(block) for block in opening(plan))
    assert summary(plan).startswith(begins)
    assert table(plan).startswith(begins)


@pytest.mark.parametrize("name", SHIPPED)
def test_words_of_insiders_do_not_come_without_their_meaning(plan_of: Plans, name: str) -> None:
    text = table(plan_of(name))
    assert not re.search(r"Q36|N\*|ttft", text)
    for word, meaning in (
        ("hybrid_radix", "hybrid_radix keeps the beginnings of prompts"),
        ("documented", "documented: known from papers and manuals"),
        ("(the bank)", "for all"),
        ("(the pool)", "All requests together hold"),
    ):
        if word in text:
            assert meaning in " ".join(text.split())


@pytest.mark.parametrize("name", ["4090-qwen", "pro6000-minimax", "tiny-cpu"])
def test_the_table_is_the_golden_one(plan_of: Plans, golden: Golden, name: str) -> None:
    plan = plan_of(name)
    golden(CASES / f"{name}.table.txt", table(plan).replace(plan.fingerprint[:12], "FINGERPRINT"))


def test_a_conversation_fits_twice_into_its_context() -> None:
    for context in (*range(2, 3_000), 65_536, 262_144):
        lengths = conversation_lengths(context, 1_024)
        once = lengths.prompt + lengths.answer + lengths.turn + lengths.answer
        assert lengths.prompt >= 1
        assert 2 * once <= context


def test_prompts_are_round_and_no_longer_than_agents_send() -> None:
    assert conversation_lengths(64 * 1024, 1_024).prompt == 30_000
    assert conversation_lengths(1024 * 1024, 1_024).prompt == 30_000
    assert conversation_lengths(16 * 1024, 512).prompt == 6_600
    assert conversation_lengths(40 * 1024, 1_024).prompt == 17_000


def test_without_a_prefix_cache_a_turn_is_read_again(plan_of: Plans) -> None:
    kept, lost = plan_of("4090-qwen"), plan_of("4090-qwen", "cache.type=none")
    assert lost.estimates.conversation.turn_s > lost.estimates.conversation.prompt_s
    assert kept.estimates.conversation.turn_s < 0.1 * lost.estimates.conversation.turn_s
    assert "(all is read again)" in dict(expectations(lost))["speed"]


def test_one_stream_makes_prompts_wait_for_the_experts(plan_of: Plans) -> None:
    two, one = (plan_of("pro6000-minimax", f"streams.layout={name}") for name in ("auto", "single"))
    gap = one.estimates.conversation.prompt_s - two.estimates.conversation.prompt_s
    passes = -(-one.estimates.conversation.prompt_tokens // one.schedule.prefill_span)
    # All passes but for the part that hides behind compute, which is at most all of it.
    assert 0 < gap <= passes * one.estimates.bank_stream_s
    assert one.estimates.decode_tokens_per_s == two.estimates.decode_tokens_per_s
