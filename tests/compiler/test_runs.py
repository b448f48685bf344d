"""What `verify` reads stands for what may happen: whole models, and any choice of decode steps and snapshots."""

import random
from collections.abc import Callable, Iterator, Sequence

import pytest
from tests.compiler.offload_plans import OFFLOAD, QUICK

from firmtoken.compiler.happens_before import Launch
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.race import check_races
from firmtoken.compiler.runs import checked_runs, compositions, short_kinds
from firmtoken.compiler.verify import layout_of

PlanOf = Callable[..., Plan]
NUM_CHOICES = 20


def groups(launches: Sequence[Launch]) -> Iterator[tuple[str, tuple[Launch, ...]]]:
    """A decode step with the host's turn before it, a snapshot of all layers, or any other launch."""
    at = 0
    while at < len(launches):
        end = at + 1
        kind = ""
        if launches[at].label.startswith("park."):
            kind = "park"
            while "snapped" not in map(str, launches[end - 1].records):
                end += 1
        elif launches[at].stream == "host" and launches[end].label == "decode":
            kind, end = "decode", end + 1
        yield kind, tuple(launches[at:end])
        at = end


@pytest.mark.parametrize("name", ["tiny-cpu in chunks", "4090-minimax"])
def test_any_choice_of_decode_steps_and_snapshots_is_free_of_races(
    name: str, plan_of: PlanOf
) -> None:
    plan = plan_of(*OFFLOAD[name])
    layout = layout_of(plan)
    *_, whole = compositions(plan, short_kinds(plan.model.layer_kinds))
    parts = list(groups(whole.launches))
    first = next(number for number, (kind, _) in enumerate(parts) if not kind)
    assert sum(kind == "decode" for kind, _ in parts[first:]) >= 10
    for seed in range(NUM_CHOICES):
        chance = random.Random(seed)
        share = chance.random()
        # The first steps draw the tokens that a later turn of the host takes.
        chosen = [
            launch
            for number, (kind, part) in enumerate(parts)
            if number < first or not kind or chance.random() < share
            for launch in part
        ]
        assert check_races(chosen, layout) == (), seed


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow, id=n) for n in OFFLOAD],
)
def test_compositions_of_whole_models_are_free_of_races(name: str, plan_of: PlanOf) -> None:
    plan = plan_of(*OFFLOAD[name])
    for run in compositions(plan, plan.model.layer_kinds):
        assert check_races(run.launches, layout_of(plan)) == ()


def test_a_plan_without_snapshots_has_one_composition_and_one_of_steps_ahead_where_they_are_replayed(
    plan_of: PlanOf,
) -> None:
    *names, ahead = [run.name for run in checked_runs(plan_of("pro6000-minimax"))]
    assert names == ["decode", "prefill", "extend", "session without snapshots"]
    assert ahead == "steps ahead"
    assert [run.name for run in checked_runs(plan_of("tiny-cpu"))] == [*names, "session"]
