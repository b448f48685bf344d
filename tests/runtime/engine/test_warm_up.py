"""Before ready, the worst legal step of every program has run, and nothing of it is left."""

from dataclasses import dataclass, field

import pytest

from firmtoken.runtime.engine.batches import SPAN, Batches, Cut
from firmtoken.runtime.engine.program import Counters, Interpreter
from firmtoken.runtime.engine.warm_up import NotFinite, warm_up


@dataclass(slots=True)
class Runs:
    """Every run of an interpreter: program, rows of each tile, sequences that are no padding, states restored."""

    programs: list[str] = field(default_factory=list)
    cuts: dict[str, list[Cut]] = field(default_factory=dict)
    most_sequences: dict[int, int] = field(default_factory=dict)
    """Rows of a decode step -> sequences"""
    restored: set[int] = field(default_factory=set)

    def note(self, name: str, cut: Cut, batches: Batches) -> None:
        self.programs.append(name)
        self.cuts.setdefault(name, []).append(cut)
        batch = batches[SPAN]
        if name == "decode":
            most = max(self.most_sequences.get(batch.rows, 0), batch.real_rows)
            self.most_sequences[batch.rows] = most
        if name in ("prefill", "extend"):
            self.restored.update(move[0] for move in batch.moves)

    def rows(self, name: str) -> int:
        """The most rows of one run."""
        return max(sum(map(sum, cut.chunks)) for cut in self.cuts[name])


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Runs:
    noted = Runs()
    original = Interpreter.run

    def spy(self, name, cut, batches, on_yield=None) -> None:
        noted.note(name, cut, batches)
        original(self, name, cut, batches, on_yield)

    monkeypatch.setattr(Interpreter, "run", spy)
    return noted


@pytest.mark.report(45, 46)
@pytest.mark.parametrize("requests", [3, 4])
@pytest.mark.parametrize("profile", ["tiny-cpu", "tiny-cpu-resident"])
def test_every_size_of_decode_and_the_worst_of_each_program_runs(
    start, runs: Runs, profile: str, requests: int
) -> None:
    bench = start(profile, "schedule.prefill_chunk=128", f"serving.requests={requests}")
    plan = bench.plan
    warm_up(plan, bench.interpreter)
    schedule = plan.schedule
    assert runs.most_sequences == {size: min(size, requests) for size in schedule.graph_batch_sizes}
    assert runs.rows("prefill") == schedule.prefill_span
    tiles = [tile for cut in runs.cuts["prefill"] for chunk in cut.chunks for tile in chunk]
    assert max(tiles) == min(schedule.mixer_tile, schedule.prefill_span)
    assert max(cut.num_seqs for cut in runs.cuts["prefill"]) == requests
    below = schedule.on_demand_below
    if plan.experts.placement == "offload":
        assert runs.rows("extend") == max(below.cold, below.warm) - 1
    assert "park" in runs.programs
    assert runs.restored > {-1}, "nothing was restored from a snapshot"
    assert bench.interpreter.counters == Counters()


def test_a_context_of_a_few_tokens_is_warmed_too(start, runs: Runs) -> None:
    bench = start("tiny-cpu", "serving.context=3")
    warm_up(bench.plan, bench.interpreter)
    assert {"prefill", "decode"} <= set(runs.programs)


@pytest.mark.report(46)
def test_logits_that_are_no_numbers_end_the_warm_up(start) -> None:
    bench = start()
    bench.interpreter.views.weight("final_norm", 0)[0] = float("nan")
    with pytest.raises(NotFinite, match="the model's logits are not finite after warm-up: `nan`"):
        warm_up(bench.plan, bench.interpreter)
