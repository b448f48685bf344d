"""A step that raises ends the requests it worked on, each with one sentence; everybody else's text stays right."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from firmtoken.compiler.faults import Fault
from firmtoken.compiler.plan import Plan
from firmtoken.runtime.engine.failures import EngineBroken
from firmtoken.runtime.engine.messages import Admitted, Done

Prompt = Callable[..., list[int]]
NEVER = 10**9
FAULTS = {
    "decode": Fault(kind="oom", op="moe_down", program="decode", layer=3, step=NEVER),
    "prefill": Fault(kind="error", op="gdn", program="prefill", layer=2, step=NEVER),
    "fetch": Fault(kind="oom", op="fetch", program="prefill", step=NEVER),
    "park": Fault(kind="error", op="snapshot", program="park", layer=1, step=NEVER),
    "enter": Fault(kind="error", op="mark", program="park", step=NEVER),
}
PREFILL = FAULTS["prefill"]


@dataclass(slots=True)
class Scene:
    """An engine whose faults happen when a test says so, and the texts of an undisturbed run of its own."""

    bench: object
    prompts: dict[int, list[int]]
    texts: dict[int, list[int]]

    def let(self, name: str) -> None:
        """This fault happens at the next launch that it names."""
        number = list(FAULTS).index(name)
        self.bench.interpreter.faults._num_launches[number] = NEVER - 1

    def add(self, *request_ids: int) -> None:
        for request_id in request_ids:
            self.bench.add(request_id, self.prompts[request_id % 10], 12)

    def right(self, request_id: int) -> bool:
        return self.bench.text(request_id) == self.texts[request_id % 10]

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.bench.engine.step()

    def check_all_returned(self) -> None:
        stats, plan = self.bench.engine.stats(), self.bench.plan
        assert stats.pages_free + stats.pages_cached == plan.kv_cache.pages - 1
        assert stats.state_slots_free == plan.kv_cache.state_slots - 1
        assert stats.running == stats.waiting == 0


def with_faults(plan: Plan) -> Plan:
    # Of the 16 units of a whole span, a decode step follows the sixth and the twelfth.
    schedule = replace(plan.schedule, decode_every_units=6)
    return replace(plan, faults=tuple(FAULTS.values()), schedule=schedule)


@pytest.fixture
def scene(start, prompt: Prompt) -> Scene:
    bench = start(
        "tiny-cpu",
        "schedule.prefill_chunk=128",
        "schedule.prefill_span=256",
        "serving.context=1k",
        change=with_faults,
    )
    prompts = {1: prompt(70, 1), 2: prompt(90, 2), 3: prompt(300, 3), 4: prompt(400, 4)}
    texts = {who: bench.ask(text, 12) for who, text in prompts.items()}
    bench.engine.scheduler.holdings.retire_cache()
    return Scene(bench, prompts, texts)


def cached_tokens(bench, request_id: int) -> int:
    found = [m for m in bench.messages if isinstance(m, Admitted) and m.request_id == request_id]
    return found[0].cached_tokens


@pytest.mark.report(14, 21)
def test_a_decode_step_out_of_memory_ends_its_requests_and_harms_nobody(scene: Scene) -> None:
    bench = scene.bench
    scene.add(11, 12)
    scene.step(3)
    scene.add(13)  # two spans
    scene.step()
    scene.let("decode")
    scene.step()  # between them
    sentence = "out of memory in `moe_down` (layer 3 of decode, stream `main`)"
    for request_id in (11, 12):
        end = bench.end(request_id)
        assert (end.reason, end.message) == ("error", sentence)
    assert bench.logs("failed") == [f"step {bench.engine.steps} failed: {sentence}; ends: 11, 12"]
    bench.drain()
    assert scene.right(13)
    scene.add(21, 22)
    bench.drain()
    assert scene.right(21) and scene.right(22)
    assert cached_tokens(bench, 21) == 0  # nothing of the failed ones, nor of before, is found
    scene.check_all_returned()
    scene.add(31)
    bench.drain()
    assert scene.right(31) and cached_tokens(bench, 31) == 64


@pytest.mark.report(14)
@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (
            "prefill",
            "`gdn` (layer 2 of prefill, stream `main`) failed: InjectedError: "
            "a fault was planned in `gdn`",
        ),
        ("fetch", "out of memory in `fetch` (prefill, for `staged[0]`, stream `link`)"),
    ],
)
def test_a_span_that_fails_ends_those_in_it_while_a_running_stream_goes_on(
    scene: Scene, fault: str, sentence: str
) -> None:
    bench = scene.bench
    scene.add(11)
    scene.step(3)
    scene.let(fault)
    scene.add(12, 14)  # the second takes several spans
    bench.drain()
    assert {bench.end(who).message for who in (12, 14)} == {sentence}
    assert scene.right(11) and bench.end(11).reason == "length"
    scene.check_all_returned()
    scene.add(22, 24, 21)
    bench.drain()
    assert all(scene.right(who) for who in (21, 22, 24))


def test_a_decode_step_that_fails_inside_a_span_ends_both_and_nobody_else(scene: Scene) -> None:
    bench = scene.bench
    scene.add(11)
    scene.step(2)
    scene.add(14, 13)  # the first fills the span; the other one is admitted and comes later
    bench.at_poll = lambda: scene.let("decode")
    bench.step_until(lambda: bench.logs("failed"))
    bench.at_poll = lambda: None
    assert bench.engine.scheduler.open_span is None and not bench.interpreter.held
    interpreter = bench.interpreter
    assert interpreter.position.words[interpreter._main_word] == 0  # nothing runs
    ended = [message.request_id for message in bench.messages if isinstance(message, Done)][-2:]
    assert sorted(ended) == [11, 14]
    bench.drain()
    assert scene.right(13) and bench.end(13).reason == "length"
    scene.add(21, 24)
    bench.drain()
    assert scene.right(21) and scene.right(24)
    scene.check_all_returned()


@pytest.mark.parametrize("fault", ["park", "enter"])
def test_states_that_cannot_be_parked_cost_the_cache_and_no_request(
    scene: Scene, fault: str
) -> None:
    bench = scene.bench
    slots = bench.engine.stats().snapshot_slots_free
    scene.let(fault)
    scene.add(11, 12)  # parked at the end of their span
    bench.drain()
    assert scene.right(11) and scene.right(12)
    op = {"park": "`snapshot` (layer 1 of park, stream `link`)", "enter": "`mark` (park, "}[fault]
    (line,) = bench.logs("failed: InjectedError")
    assert op in line and line.endswith("ends: nobody")
    stats = bench.engine.stats()
    assert stats.pages_cached == 0 and stats.snapshot_slots_free == slots
    scene.add(21)
    bench.drain()
    scene.add(31)
    bench.drain()
    assert scene.right(31) and cached_tokens(bench, 31) == 64
    scene.check_all_returned()


def test_who_found_a_snapshot_that_was_not_written_starts_over(scene: Scene) -> None:
    bench = scene.bench
    scene.let("park")
    bench.add(11, scene.prompts[1], 1)
    bench.drain()  # nothing runs after it that would notice
    scene.add(21)
    bench.drain()
    assert cached_tokens(bench, 21) == 64 and scene.right(21)
    admitted = [m for m in bench.messages if isinstance(m, Admitted) and m.request_id == 21]
    assert [(m.cached_tokens, m.resumed) for m in admitted] == [(64, False), (0, True)]
    assert len(bench.logs("ends: nobody")) == 1
    scene.check_all_returned()


def test_states_that_cannot_be_parked_inside_a_span_cost_the_span(
    scene: Scene, prompt: Prompt
) -> None:
    bench = scene.bench
    scene.add(11)
    bench.add(15, prompt(126, 5), 4)  # passes a page boundary inside the span
    scene.step(2)
    scene.add(14)

    def park_fails() -> None:
        if len(bench.text(15)) == 3:  # the next step is its last: then it is parked
            scene.let("park")

    bench.at_poll = park_fails
    bench.drain()
    assert scene.right(11) and bench.end(11).reason == bench.end(15).reason == "length"
    assert bench.end(14).message.startswith("`snapshot` (layer 1 of park, stream `link`) failed")
    scene.add(24)
    bench.drain()
    assert scene.right(24)
    scene.check_all_returned()


def test_three_failed_steps_in_a_row_end_the_engine(start, prompt: Prompt) -> None:
    launches = (1, 2, 4, 5, 6)  # the third is good
    faults = tuple(replace(PREFILL, step=step) for step in launches)
    bench = start(
        "tiny-cpu", "serving.context=512", change=lambda plan: replace(plan, faults=faults)
    )
    for request_id in (1, 2, 3, 4, 5):
        bench.ask(prompt(70, request_id), 1)
    assert len(bench.logs("failed")) == 4
    bench.add(6, prompt(70, 6), 1)
    with pytest.raises(EngineBroken, match="3 steps in a row failed, the last one: `gdn`"):
        bench.drain()
    assert bench.end(6).reason == "error"


def on_a_gpu(plan: Plan) -> Plan:
    return replace(with_faults(plan), device=replace(plan.device, survives_errors=False))


@pytest.mark.report(21)
def test_on_a_gpu_only_want_of_memory_is_survived(start, prompt: Prompt) -> None:
    bench = start("tiny-cpu", "serving.context=512", change=on_a_gpu)
    scene = Scene(bench, {1: prompt(70, 1)}, {})
    scene.let("decode")
    scene.add(1)
    bench.drain()
    assert bench.end(1).message.startswith("out of memory in `moe_down`")
    scene.let("prefill")
    scene.add(11)
    with pytest.raises(EngineBroken, match="the device is in an unknown state: `gdn`"):
        bench.drain()
