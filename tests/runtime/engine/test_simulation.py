"""The scheduler without a model: each request ends once, its text is right, its wait is bounded, and all comes back.

The bounds follow from D3. First come, first served, but for at most `max_passes` younger requests that pass. So whoever
waits, waits for those who were there when it came and for `max_passes` others; every step is work on one of them; and
each of them gives way `max_preemptions` times at most, so that the steps that it can take are bounded by its length.
"""

import random
from dataclasses import replace

import pytest
from tests.runtime.engine.random_traffic import SETTINGS, simulate
from tests.runtime.engine.simulation import Simulation
from tests.runtime.engine.tiny_limits import TINY

from firmtoken.runtime.engine.invariants import InvariantBroken
from firmtoken.runtime.engine.messages import FinishReason
from firmtoken.runtime.engine.scheduler import Drawn, Scheduler
from firmtoken.runtime.engine.sequence import Phase, Sequence
from firmtoken.runtime.engine.work import Decode, Span
from firmtoken.runtime.memory.shortage import Shortage

SEED = 1
PER_SETTING = 12_500
"""With eight settings, 10^5 requests; 10^6 by hand, see `random_traffic.py`."""


@pytest.mark.report(6, 7, 9, 17)
@pytest.mark.parametrize("name", SETTINGS)
def test_each_of_many_requests_ends_once_with_its_own_text_after_a_bounded_wait(name: str) -> None:
    done = simulate(name, SEED, PER_SETTING, check_every=64)
    print(f"{name}: seed {SEED}, outcome {done.outcome.hexdigest()[:16]}, {done.steps} steps")
    phases = ("waiting", "prefill", "decode", "in the span", "ended")
    expected = ["stop", "length", "decode at a yield", "abandoned"]
    expected += [f"abort {phase}" for phase in phases]
    if not name.startswith("large"):
        expected += ["preempted", "resumed"]
    if done.limits.caching and (done.limits.snapshot_slots or not done.limits.hybrid):
        expected.append("hit")
    assert [what for what in expected if not done.seen[what]] == [], "a case that was never met"


@pytest.mark.parametrize("seed", range(2, 4))
@pytest.mark.parametrize("name", SETTINGS)
def test_everything_holds_after_every_step(name: str, seed: int) -> None:
    simulate(name, seed, 150, check_every=1)


@pytest.mark.parametrize("name", SETTINGS)
def test_steps_that_fail_end_who_was_in_them_and_nobody_reads_what_they_left(name: str) -> None:
    done = simulate(name, 7, 400, check_every=1, fail=0.01)
    expected = ["error", "StepFailed", "FailedBefore", "not finite", "stop", "length"]
    if done.limits.snapshot_slots:
        expected.append("not parked")
    assert [what for what in expected if not done.seen[what]] == [], "a case that was never met"


@pytest.mark.parametrize("fail", [0.0, 0.01])
@pytest.mark.parametrize("name", SETTINGS)
def test_steps_that_run_ahead_of_their_tokens_change_no_text_and_keep_nothing_of_who_has_ended(
    name: str, fail: float
) -> None:
    done = simulate(name, 8, 600, check_every=1, fail=fail, ahead=True)
    expected = ["stop", "length", "abort decode", "decode at a yield", "row of one that ended"]
    expected += ["row ahead"] + ["not finite", "StepFailed"] * (fail > 0)
    if done.limits.caching and (done.limits.snapshot_slots or not done.limits.hybrid):
        expected.append("hit")
    assert [what for what in expected if not done.seen[what]] == [], "a case that was never met"


def test_a_request_that_needs_the_whole_pool_is_not_passed_for_ever() -> None:
    limits = replace(
        TINY, output_reserve=1, max_num_seqs=4, state_slots=9, graph_batch_sizes=(4,), caching=False
    )
    simulation = Simulation(limits, random.Random(3), stop_token_ids=())
    simulation.add([1] * 2, 60)
    simulation.step()
    large = simulation.add([2] * 63, 1)
    while large in simulation.requests:  # small ones keep coming, grow, and give way to each other
        while len(simulation.scheduler.waiting) < 4:
            simulation.add([3] * simulation.random.randint(1, 2), simulation.random.randint(1, 60))
        simulation.step()
    assert simulation.most_passed == limits.max_passes
    assert simulation.seen["preempted"] > 0


def test_the_same_seed_gives_the_same_outcome() -> None:
    first, second = (simulate("tiny hybrid", 4, 300, check_every=8) for _ in range(2))
    assert first.outcome.digest() == second.outcome.digest()
    assert (first.steps, first.seen) == (second.steps, second.seen)


def test_everybody_is_sent_away_in_whatever_phase() -> None:
    simulation = Simulation(TINY, random.Random(5))
    for _ in range(200):
        for _ in range(6):
            simulation.arrive()
        for _ in range(int(simulation.random.random() * 12)):
            simulation.step()
        simulation.scheduler.abort_all()
        simulation.read(simulation.scheduler.collect())
        simulation.check_empty()
    assert simulation.seen["abort"] > 200


class LosesThePreempted(Scheduler):
    """Who gave way is never queued again."""

    def _queue(self, sequence: Sequence) -> None:
        if not sequence.preemptions:
            super()._queue(sequence)


class KeepsStatesOfTheAborted(Scheduler):
    """An abort inside a span loses a state slot."""

    def abort(self, request_id: int) -> None:
        if self.open_span is not None and self.holdings.states.num_free:
            self.holdings.states.take(1)
        super().abort(request_id)


class EndsTwice(Scheduler):
    """An abort is answered though the end was sent already."""

    def abort(self, request_id: int) -> None:
        before = len(self._messages)
        super().abort(request_id)
        self._messages += self._messages[before:]


class NeverAnswersAborts(Scheduler):
    """The request is gone and nobody is told."""

    def _end(self, sequence: Sequence, reason: FinishReason, message: str) -> None:
        super()._end(sequence, reason, message)
        if reason == "abort":
            self._messages.pop()


class ComputesTheDropped(Scheduler):
    """Pieces of a span whose request left meanwhile count nevertheless."""

    def complete_span(self, span: Span, drawn: Drawn) -> None:
        span.dropped.clear()
        super().complete_span(span, drawn)


class LetsEverybodyPass(Scheduler):
    """The head of the queue starves."""

    def _admit(self) -> None:
        super()._admit()
        for sequence in self.waiting:
            sequence.passed = 0


class PromisesMoreThanThereIs(Scheduler):
    """Admits by the prompt alone."""

    def _admit(self) -> None:
        super()._admit()
        for member in self.holdings.members:
            member.reserved = len(member.pages)


class ParksTheLiveState(Scheduler):
    """A snapshot of the wrong place in the text."""

    def complete_decode(self, decode: Decode, drawn: Drawn) -> None:
        for sequence in decode.sequences:
            sequence.live, sequence.shadow = sequence.shadow, sequence.live
        super().complete_decode(decode, drawn)
        for sequence in decode.sequences:
            sequence.live, sequence.shadow = sequence.shadow, sequence.live


class StandsStillWhilePrefilling(Scheduler):
    """Running streams wait for all prompts."""

    def schedule(self) -> Span | Decode | None:
        self._decode_is_due = False
        return super().schedule()


class PreemptsTheOldest(Scheduler):
    """Who is nearly done gives way, again and again."""

    def _preempt_youngest(self, wanting: Sequence) -> None:
        oldest = min(self.holdings.members, key=lambda member: member.arrival)
        self.holdings.release(oldest)
        oldest.preemptions += 1
        self._queue(oldest)


class ForgetsItsText(Scheduler):
    """Who gave way begins again and says its tokens twice."""

    def _queue(self, sequence: Sequence) -> None:
        del sequence.token_ids[sequence.prompt_tokens :]
        super()._queue(sequence)


class LeavesTheLastOneWaiting(Scheduler):
    """A request for which nothing is short is not admitted."""

    def _admit(self) -> None:
        if len(self._sequences) > 1:
            super()._admit()


class TrustsWhatAFailedStepLeft(Scheduler):
    """The prefix cache goes on as if nothing had happened."""

    def distrust_cache(self) -> None:
        pass


class OffersWhatItHasRetired(Scheduler):
    """Who runs puts back into the cache what was retired."""

    def schedule(self) -> Span | Decode | None:
        for member in self.holdings.members:
            assert member.node is not None
            member.node.retired = False
        return super().schedule()


class RenewsShadowsAhead(Scheduler):
    """Who ends has a newer state in its shadow than it knows of."""

    def following(self, decode: Decode) -> Decode | None:
        limits, self.limits = self.limits, replace(self.limits, hybrid=False)
        try:
            return super().following(decode)
        finally:
            self.limits = limits


class RunsAheadOfPrompts(Scheduler):
    """Streams that run on keep a prompt waiting."""

    def following(self, decode: Decode) -> Decode | None:
        alive = all(sequence.phase is Phase.DECODE for sequence in decode.sequences)
        return replace(decode, ahead=True) if alive else None


BROKEN_AHEAD = [RenewsShadowsAhead, RunsAheadOfPrompts]
BROKEN = [
    LosesThePreempted,
    KeepsStatesOfTheAborted,
    EndsTwice,
    NeverAnswersAborts,
    ComputesTheDropped,
    LetsEverybodyPass,
    PromisesMoreThanThereIs,
    ParksTheLiveState,
    StandsStillWhilePrefilling,
    PreemptsTheOldest,
    ForgetsItsText,
    LeavesTheLastOneWaiting,
    TrustsWhatAFailedStepLeft,
    OffersWhatItHasRetired,
]


@pytest.mark.parametrize("broken", BROKEN_AHEAD)
def test_the_simulation_catches_a_scheduler_that_runs_ahead_where_it_must_not(
    broken: type[Scheduler],
) -> None:
    simulation = Simulation(
        TINY, random.Random(6), check_every=16, abort=0.1, ahead=True, make_scheduler=broken
    )
    with pytest.raises((AssertionError, InvariantBroken, Shortage, KeyError, IndexError)):
        simulation.run(3_000)


@pytest.mark.parametrize("broken", BROKEN)
def test_the_simulation_catches_a_broken_scheduler(broken: type[Scheduler]) -> None:
    simulation = Simulation(
        TINY, random.Random(6), check_every=16, abort=0.1, fail=0.01, make_scheduler=broken
    )
    with pytest.raises((AssertionError, InvariantBroken, Shortage, KeyError)):
        simulation.run(3_000)
