"""Decode steps ahead of their tokens: free of races as they are launched, and objected to where a rule is broken."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.compiler.mutants import forget_snapshots
from tests.compiler.offload_plans import OFFLOAD

from firmtoken.compiler import steps_ahead
from firmtoken.compiler.happens_before import Launch
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.race import check_races
from firmtoken.compiler.redundant_waits import waits_of, without_wait
from firmtoken.compiler.runs import Run, ahead_runs, checked_runs, short_kinds
from firmtoken.compiler.sessions import cards_of
from firmtoken.compiler.steps_ahead import StepsAhead
from firmtoken.compiler.verify import layout_of

PlanOf = Callable[..., Plan]
SHIPPED = ("h200-qwen", "4090-minimax", "pro6000-minimax")
OFFLOADED = [name for name in OFFLOAD if not name.startswith("tiny-cpu")]


def begin(plan: Plan) -> StepsAhead:
    """Nothing has been launched yet."""
    return StepsAhead(plan.programs, short_kinds(plan.model.layer_kinds), cards_of(plan.kernels))


def faults(plan: Plan, life: StepsAhead) -> tuple[str, ...]:
    return check_races(life.launches, layout_of(plan))


@pytest.fixture(params=SHIPPED)
def plan(request: pytest.FixtureRequest, plan_of: PlanOf) -> Plan:
    return plan_of(request.param)


def ahead_run(plan: Plan) -> Run:
    """What `verify` reads."""
    (run,) = ahead_runs(plan, short_kinds(plan.model.layer_kinds))
    return run


def is_hybrid(plan: Plan) -> bool:
    return plan.programs.park is not None


def test_where_decode_steps_are_replayed_they_are_checked_ahead(
    plan: Plan, tiny_plan: Plan
) -> None:
    assert [run.name for run in checked_runs(plan)][-1] == "steps ahead"
    assert "steps ahead" not in [run.name for run in checked_runs(tiny_plan)]


@pytest.mark.parametrize("name", OFFLOADED)
def test_steps_ahead_of_whole_models_are_free_of_races(name: str, plan_of: PlanOf) -> None:
    plan = plan_of(*OFFLOAD[name])
    (run,) = ahead_runs(plan, plan.model.layer_kinds)
    assert check_races(run.launches, layout_of(plan)) == ()


def test_a_step_is_under_way_while_the_host_reads_and_while_states_are_parked(plan: Plan) -> None:
    """What the composition is for: else it would prove less than it says."""
    labels = [launch.label for launch in ahead_run(plan).launches]
    assert labels.index("decode(1)") < labels.index("host.take(0)") < labels.index("host.take(1)")
    if is_hybrid(plan):
        parked = labels.index("park.snapshot(l=0)")
        assert labels.index("decode(2)") < parked < labels.index("host.take(2)")


ORDERED_BY_THE_RUNTIME = {
    # Without it the host writes a batch while the copy before is being made.
    "host.sent.decode": "while send(decode,",
    "host.sent.span": "while send(span,",
    # Without it the host reads tokens that are on their way.
    "host.drawn[0]": "too early: bring(",
    "host.drawn[1]": "too early: bring(",
    # Without it a batch is brought over before the host has written it.
    "host.enqueued": "too early: host.write(",
}


@pytest.mark.parametrize("event", ORDERED_BY_THE_RUNTIME)
def test_without_one_wait_of_the_runtime_there_is_a_race(event: str, plan: Plan) -> None:
    run = ahead_run(plan)
    waits = [wait for wait in waits_of(run) if str(wait.event) == event]
    found = [check_races(without_wait(run.launches, wait), layout_of(plan)) for wait in waits]
    assert any(ORDERED_BY_THE_RUNTIME[event] in fault for each in found for fault in each), found


def test_every_time_the_host_writes_a_batch_it_must_have_waited_for_the_copy(plan: Plan) -> None:
    """Between a step and the one ahead of its tokens nothing else orders the two."""
    life = begin(plan)
    life.decode(0, 1)
    life.decode(0, 1, ahead=True)
    run = Run(name="", launches=tuple(life.launches), closed=False)
    (wait,) = (wait for wait in waits_of(run) if wait.step == "host.write")
    (fault, *_) = check_races(without_wait(run.launches, wait), layout_of(plan))
    assert (
        fault
        == "host.write(decode,1) writes `pinned.decode[1]` while send(decode,0) may still read `pinned.decode[0]`"
    )


def test_one_place_for_what_is_drawn_is_overrun(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_ahead, "UNDER_WAY", 1)
    run = ahead_run(plan)
    (fault, *_) = check_races(run.launches, layout_of(plan))
    assert (
        fault
        == "host.take(0) reads `pinned.tokens[0]`, its bytes hold `pinned.tokens[1]` of bring(1)"
    )


def test_a_third_step_before_the_first_was_read_is_too_many(plan: Plan) -> None:
    life = begin(plan)
    life.decode(0)
    life.decode(0, ahead=True)
    life.decode(0, ahead=True)
    life.take()
    assert faults(plan, life)[0].startswith("host.take(0) reads `pinned.tokens[0]`, its bytes hold")


def test_a_step_ahead_that_is_not_fed_reads_a_token_that_nobody_drew(plan: Plan) -> None:
    life = begin(plan)
    life.decode(0)
    life.decode(0, ahead=True)
    life.launches = [one for one in life.launches if not one.label.startswith("feed(")]
    assert faults(plan, life) == (
        "decode(1) reads `decode.token_ids[1]`, its bytes hold `decode.token_ids[-1]` of send(decode,1)",
    )


def test_a_step_ahead_that_is_fed_behind_its_launch_reads_a_token_that_nobody_drew(
    plan: Plan,
) -> None:
    life = begin(plan)
    life.decode(0)
    life.decode(0, ahead=True)
    at = [one.label for one in life.launches].index("feed(1)")
    life.launches[at : at + 2] = reversed(life.launches[at : at + 2])
    found = faults(plan, life)
    assert found[0].startswith("decode(1) reads `decode.token_ids[1]`, its bytes hold")
    assert found[1].startswith(
        "feed(1) reads `decode.tokens[0]`, its bytes hold `decode.tokens[1]`"
    )


def test_tokens_that_are_brought_behind_the_next_step_are_its_own(plan: Plan) -> None:
    life = begin(plan)
    life.decode(0)
    brought = life.launches.pop()
    life.decode(0, ahead=True)
    life.launches.append(brought)
    assert (
        "bring(0) reads `decode.tokens[0]`, its bytes hold `decode.tokens[1]` of decode(1)"
        in faults(plan, life)
    )


@pytest.mark.parametrize("renews", [True, False])
def test_a_shadow_that_a_step_ahead_renews_is_not_what_is_parked(plan: Plan, renews: bool) -> None:
    if not is_hybrid(plan):
        return
    life = begin(plan)
    life.decode(0, 1)
    life.decode(0, 1, ahead=True, renewing=(0,) if renews else ())
    life.take()
    life.park(0)
    found = faults(plan, life)
    assert bool(found) is renews
    if renews:
        assert (
            found[0] == "park.snapshot(l=0) reads `shadow.conv_state[0,0,0]`, its bytes hold "
            "`shadow.conv_state[0,0,1]` of decode(1)"
        )


def beside_main(launch: Launch) -> Launch:
    """It waits for nothing, and is done some day."""
    return replace(launch, stream="beside", waits=())


@pytest.mark.parametrize("name", ["prefill", "extend"])
def test_pages_that_were_given_away_may_not_be_written_beside_main(name: str, plan: Plan) -> None:
    """The row of who has ended is still written: only the stream's order keeps the new owner's launches behind it."""
    life = begin(plan)
    life.decode(0, 1)
    life.decode(0, 1, ahead=True)
    life.take()
    behind = len(life.launches)
    life.span(name, (2,))  # before the step under way was read
    first = next(
        at
        for at, launch in enumerate(life.launches)
        if at >= behind and any(value.name == "kv" for value in launch.writes)
    )
    life.launches[first] = beside_main(life.launches[first])
    assert any(
        "writes `kv[" in fault and "while decode(1) may" in fault for fault in faults(plan, life)
    )


def test_a_row_of_who_has_ended_must_be_launched_before_its_pages_are_somebody_elses(
    plan: Plan,
) -> None:
    life = begin(plan)
    life.decode(0, 1)
    life.take()
    life.span("prefill", (2,))
    life.decode(0, 1)
    life.decode(1, 2)
    found = faults(plan, life)
    assert any("decode(2) reads `kv[" in fault and ",2]` of prefill." in fault for fault in found)


def test_states_that_are_still_parked_may_not_be_somebody_elses(plan: Plan) -> None:
    if not is_hybrid(plan):
        return
    run = ahead_run(forget_snapshots(plan))
    assert any(
        "while park.snapshot" in fault for fault in check_races(run.launches, layout_of(plan))
    )
