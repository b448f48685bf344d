"""Decode steps that are launched before the tokens of the last one are read say the same, and end the same.

Only a GPU runs ahead. Here the CPU does, with a builder of batches that takes unseen tokens from where they were drawn.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.messages import Abort, Sampling, Tokens
from firmtoken.runtime.engine.program import FailedBefore
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.work import Decode

SAMPLED = Sampling(temperature=0.8, top_p=0.9, top_k=20, min_p=0.0, seed=11)
Prompt = Callable[..., list[int]]


@dataclass(slots=True)
class Feeding:
    """A CPU's builder, for steps ahead too: tokens that nobody has seen are those that the last step drew."""

    plain: Any
    tokens: torch.Tensor
    steps_ahead: int = 0

    def decode(self, decode: Decode) -> Any:
        if not decode.ahead:
            return self.plain.decode(decode)
        self.steps_ahead += 1
        known = zip(decode.sequences, self.tokens.clamp(min=0).tolist(), strict=False)
        sequences = tuple(with_token(sequence, token) for sequence, token in known)
        return self.plain.decode(replace(decode, sequences=sequences))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


def with_token(sequence: Sequence, token: int) -> Sequence:
    token_ids = [*sequence.token_ids, token]
    return replace(sequence, token_ids=token_ids, computed=sequence.computed + 1)


def run_ahead(bench: Any) -> Feeding:
    tokens = bench.interpreter.views.tensor(Value("decode.tokens"))
    bench.engine._batches = builder = Feeding(bench.engine._batches, tokens)
    bench.engine.ahead = True
    return builder


@pytest.fixture(params=["tiny-cpu", "tiny-cpu-resident"])
def pair(request: pytest.FixtureRequest, start: Any) -> Iterator[tuple[Any, Any, Feeding]]:
    """An engine that waits for each token, and one that runs ahead."""
    waiting, ahead = start(request.param), start(request.param)
    return waiting, ahead, run_ahead(ahead)


def ask_all(bench: Any, prompt: Prompt, stops: dict[int, tuple[int, ...]]) -> dict[int, list[int]]:
    """Some come together, some later; they end one after the other."""
    for number in range(2):
        bench.add(number, prompt(50 + 30 * number, number), 70, SAMPLED, stops.get(number, ()))
    bench.step_until(lambda: len(bench.text(0)) >= 20)
    bench.add(2, prompt(9, 2), 12, SAMPLED)
    bench.step_until(lambda: len(bench.text(2)) >= 3)
    bench.add(3, prompt(130, 3), 40, SAMPLED, stops.get(3, ()))
    bench.drain()
    return {number: bench.text(number) for number in range(4)}


def test_texts_are_those_of_an_engine_that_waits_for_each_token(
    pair: tuple[Any, Any, Feeding], prompt: Prompt
) -> None:
    waiting, ahead, builder = pair
    wanted = ask_all(waiting, prompt, {})
    assert ask_all(ahead, prompt, {}) == wanted
    assert builder.steps_ahead > 40
    stops = {0: (wanted[0][33],), 3: (wanted[3][5],)}
    again = ask_all(ahead, prompt, stops)
    for number, (stop,) in stops.items():
        text = wanted[number]
        # `again` has both answers, one behind the other.
        assert again[number][len(text) :] == text[: text.index(stop) + 1]
    assert again[1][70:] == wanted[1]


def test_a_step_is_launched_before_the_tokens_of_the_last_are_said(
    start: Any, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start("tiny-cpu-resident")
    run_ahead(bench)
    said: list[int] = []
    run = bench.interpreter.run

    def noted(name: str, *arguments: Any) -> None:
        said.append(sum(isinstance(message, Tokens) for message in bench.messages))
        run(name, *arguments)

    monkeypatch.setattr(bench.interpreter, "run", noted)
    bench.ask(prompt(20), max_output=8)
    # The prompt; its first decode step, which nobody could launch before; then always one ahead, to the last.
    assert said[:8] == [0, 1, 1, 2, 3, 4, 5, 6]


def test_who_stops_has_a_row_in_one_step_more_and_nothing_of_it_is_kept(
    start: Any, prompt: Prompt
) -> None:
    bench = start("tiny-cpu-resident")
    wanted = bench.ask(prompt(20), max_output=30)
    builder = run_ahead(bench)
    stop = next(one for one in wanted[8:] if wanted.index(one) >= 8)
    length = wanted.index(stop) + 1
    bench.add(1, prompt(20), 30, stop=(stop,))
    bench.step_until(lambda: len(bench.text(1)) == length)
    assert bench.end(1).reason == "stop"
    assert not bench.engine.idle, "a step is under way"
    bench.drain()
    assert bench.text(1) == wanted[:length]
    assert builder.steps_ahead == length - 1
    assert bench.engine.scheduler.holdings.available == bench.plan.kv_cache.pages - 1


def test_who_leaves_while_a_step_is_under_way_gets_nothing_of_it(
    pair: tuple[Any, Any, Feeding], prompt: Prompt
) -> None:
    waiting, ahead, _ = pair
    for bench in pair[:2]:
        bench.add(1, prompt(40, 1), 30)
        bench.add(2, prompt(60, 2), 30)
        bench.step_until(lambda bench=bench: len(bench.text(2)) >= 6)
        bench.engine.handle(Abort(request_id=1))
        gone = bench.text(1)
        bench.add(3, prompt(90, 3), 10)
        bench.drain()
        assert bench.text(1) == gone
    assert ahead.text(2) == waiting.text(2)
    assert ahead.text(3) == waiting.text(3)


def test_who_comes_waits_for_the_step_under_way_and_no_longer(start: Any, prompt: Prompt) -> None:
    bench = start("tiny-cpu-resident")
    run_ahead(bench)
    bench.add(1, prompt(40, 1), 60)
    bench.step_until(lambda: len(bench.text(1)) >= 6)
    bench.add(2, prompt(40, 2), 5)
    bench.engine.step()
    assert not bench.text(2)
    bench.engine.step()
    assert bench.text(2)


def test_logits_that_are_no_numbers_end_one_request_while_the_next_step_is_under_way(
    start: Any, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start("tiny-cpu-resident")
    wanted = bench.ask(prompt(60, 2), max_output=20)
    run_ahead(bench)
    bench.add(1, prompt(40, 1), 20)
    bench.add(2, prompt(60, 2), 20)
    bench.step_until(lambda: len(bench.text(2)) >= 5)
    bring = bench.interpreter.bring

    def strange_once(program: str, count: int) -> Callable[[], list[int]]:
        monkeypatch.undo()
        tokens = bring(program, count)()
        return lambda: [-1, *tokens[1:]]

    monkeypatch.setattr(bench.interpreter, "bring", strange_once)
    bench.drain()
    assert bench.end(1).reason == "error"
    assert bench.text(2) == wanted


def test_a_launch_that_fails_ahead_ends_who_is_in_it_and_the_engine_goes_on(
    start: Any, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = start("tiny-cpu-resident")
    wanted = bench.ask(prompt(60, 2), max_output=20)
    builder = run_ahead(bench)
    bench.add(1, prompt(40, 1), 20)
    bench.step_until(lambda: builder.steps_ahead >= 5)
    walk = bench.interpreter._walk

    def failing(name: str, *arguments: Any) -> None:
        monkeypatch.undo()
        bound, *rest = arguments
        walk(name, [replace(bound.first_on_main(), call=broken)], *rest)

    def broken(batch: object) -> None:
        raise MemoryError

    monkeypatch.setattr(bench.interpreter, "_walk", failing)
    bench.drain()
    assert bench.end(1).reason == "error"
    assert bench.ask(prompt(60, 2), max_output=20) == wanted


def test_a_failure_of_the_step_before_ends_its_rows_though_it_is_noticed_by_the_launch_ahead(
    start: Any, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was computed once more would have a state that is one token too far."""
    bench = start("tiny-cpu-resident")
    builder = run_ahead(bench)
    bench.add(1, prompt(40, 1), 20)
    bench.step_until(lambda: builder.steps_ahead >= 5)

    def noticed(name: str, *arguments: Any) -> None:
        monkeypatch.undo()
        raise FailedBefore("a copy of the step before") from MemoryError()

    monkeypatch.setattr(bench.interpreter, "_walk", noticed)
    bench.drain()
    assert bench.end(1).reason == "error"


def test_a_copy_of_states_that_fails_ends_who_is_in_the_step_under_way(
    start: Any, prompt: Prompt, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of that step nothing is read any more, so its rows cannot go on."""
    alone = start("tiny-cpu-resident")
    alone.add(2, prompt(120), 60, SAMPLED)
    alone.drain()
    wanted = alone.text(2)
    bench = start("tiny-cpu-resident")
    run_ahead(bench)
    bench.add(1, prompt(70, 1), 100)
    # It stops behind a page boundary that only its own steps have reached.
    bench.add(2, prompt(120), 60, SAMPLED, (next(n for n in wanted[20:] if n not in wanted[:20]),))
    bench.step_until(lambda: len(bench.text(2)) > 2)
    walk = bench.interpreter._walk
    failed: list[str] = []

    def noticed(name: str, *arguments: Any) -> None:
        if name == "park" and not failed:
            failed.append(name)
            raise FailedBefore("a copy of the step before") from MemoryError()
        walk(name, *arguments)

    monkeypatch.setattr(bench.interpreter, "_walk", noticed)
    bench.drain()
    assert failed
    assert bench.end(2).reason == "stop"
    assert bench.end(1).reason == "error"
