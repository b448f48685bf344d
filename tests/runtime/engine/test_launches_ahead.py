"""What an engine that runs ahead launches is what the checker reads of it, and free of races on the plan itself."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.runtime.engine.late_device import PAGE, LateInterpreter, late_plan
from tests.runtime.engine.late_traffic import Traffic, overwrite_batches, renew_shadows_ahead

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.race import check_races
from firmtoken.compiler.runs import short_kinds
from firmtoken.compiler.sessions import cards_of
from firmtoken.compiler.steps_ahead import SEATS, StepsAhead
from firmtoken.compiler.verify import layout_of
from firmtoken.runtime.engine.batches import SPAN
from firmtoken.runtime.engine.device_batches import DeviceBatches, Region
from firmtoken.runtime.engine.drawn import DrawnTokens
from firmtoken.runtime.engine.sequence import Sequence
from firmtoken.runtime.engine.work import Decode, Span

OF_A_SPAN = "prefill"


@dataclass(slots=True)
class Recorder:
    """Notes what the host and `main` do, and issues the same runs to `life`."""

    life: StepsAhead
    labels: list[str] = field(default_factory=list)
    owners: dict[tuple[int, int], int] = field(default_factory=dict)
    seated: list[int] = field(default_factory=lambda: [0] * SEATS)
    regions: dict[int, str] = field(default_factory=dict)
    work: Any = None

    def owner(self, sequence: Sequence) -> int:
        """By its state slots: who gets them next is the next owner of the same seat."""
        key = (sequence.request_id, sequence.starts)
        if key not in self.owners:
            seat = _seat(sequence.live)
            assert seat == _seat(sequence.shadow)
            self.owners[key] = seat + SEATS * self.seated[seat]
            self.seated[seat] += 1
        return self.owners[key]

    def holder(self, slot: int) -> int:
        """Who has this state slot now."""
        seat = _seat(slot)
        return seat + SEATS * (self.seated[seat] - 1)

    def ran(self, name: str, batches: Any) -> None:
        if name == "park":
            self.labels.append("park")
            self.life.park(*(self.holder(state) for state, _ in batches[SPAN].moves))
        elif isinstance(self.work, Span):
            self.labels.append(OF_A_SPAN)
            self.life.span(name, [self.owner(piece.sequence) for piece in self.work.pieces])
        else:
            decode, unseen = self.work, int(self.work.ahead)
            self.labels.append("decode")
            last = [one for one in decode.sequences if _fills_a_page(one.computed + unseen + 1)]
            self.life.decode(
                *map(self.owner, decode.sequences),
                ahead=decode.ahead,
                renewing=[self.owner(one) for one in last],
            )

    def took(self) -> None:
        self.labels.append("host.take")
        if not isinstance(self.work, Span):  # a span's own is in it already
            self.life.take()


def _seat(slot: int) -> int:
    return (slot - 1) // 2


def _fills_a_page(num_tokens: int) -> bool:
    return num_tokens % PAGE == 0


@pytest.fixture
def plan() -> Plan:
    return late_plan(requests=SEATS)


@pytest.fixture
def recorded(plan: Plan) -> Callable[[int], Recorder]:
    """`recorded(seed)`: of random requests."""

    def record(seed: int) -> Recorder:
        kinds = short_kinds(plan.model.layer_kinds)
        recorder = Recorder(StepsAhead(plan.programs, kinds, cards_of(plan.kernels)))
        with pytest.MonkeyPatch.context() as patch:
            traffic = Traffic(plan, seed, patch, compared=False, at_yields=False)
            batches: Any = traffic.engine._batches
            recorder.regions = {id(batches._decode): "decode", id(batches._span): "span"}
            watch(recorder, patch)
            traffic.run(25)
        return recorder

    return record


def watch(recorder: Recorder, patch: pytest.MonkeyPatch) -> None:
    """Every action is noted before it happens."""

    def before(owner: type, name: str, note: Callable[..., None]) -> None:
        act = getattr(owner, name)

        def noted(*arguments: Any, **named: Any) -> Any:
            note(*arguments)
            return act(*arguments, **named)

        patch.setattr(owner, name, noted)

    def say(label: str) -> Callable[..., None]:
        return lambda region, *_: recorder.labels.append(f"{label}({recorder.regions[id(region)]})")

    def keep(_: DeviceBatches, work: Decode | Span, *__: Any) -> None:
        recorder.work = work

    before(DeviceBatches, "decode", keep)
    before(DeviceBatches, "span", keep)
    before(Region, "wait", say("host.write"))
    before(Region, "send", say("send"))
    before(DeviceBatches, "_feed", lambda *_: recorder.labels.append("feed"))
    before(LateInterpreter, "run", lambda _, name, cut, batches, *__: recorder.ran(name, batches))
    before(DrawnTokens, "bring", lambda *_: recorder.labels.append("bring"))
    before(LateInterpreter, "settle", lambda *_: recorder.took())


def labels_of(life: StepsAhead) -> Iterator[str]:
    """As a recorder says them: without numbers, a program as one."""
    last = ""
    for launch in life.launches:
        program = launch.label.partition(".")[0]
        if program == "park":
            if launch.stream == "main":  # its first
                yield program
        elif program == OF_A_SPAN:
            if last != program:
                yield program
        else:
            yield re.sub(r",?\d+\)$", ")", launch.label).replace("()", "")
        last = program


@pytest.mark.parametrize("seed", range(4))
def test_what_the_engine_launches_is_what_the_checker_reads_and_free_of_races(
    seed: int, plan: Plan, recorded: Callable[[int], Recorder]
) -> None:
    recorder = recorded(seed)
    assert {"feed", "park"} <= {*recorder.labels}
    assert [*labels_of(recorder.life)] == recorder.labels
    assert max(recorder.owners.values()) > 2 * SEATS, "pages and states go from hand to hand"
    assert check_races(recorder.life.launches, layout_of(plan)) == ()


def test_a_shadow_that_the_engine_renews_ahead_is_objected_to(
    plan: Plan, recorded: Callable[[int], Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    renew_shadows_ahead(monkeypatch)
    layout = layout_of(plan)
    found = [
        fault for seed in range(4) for fault in check_races(recorded(seed).life.launches, layout)
    ]
    assert any("park.snapshot" in fault and "its bytes hold `shadow." in fault for fault in found)


def test_a_host_that_does_not_wait_for_its_copy_is_not_what_the_checker_reads(
    recorded: Callable[[int], Recorder], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = DeviceBatches.decode

    def hasty(self: DeviceBatches, work: Decode) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            overwrite_batches(patch)
            return decode(self, work)

    monkeypatch.setattr(DeviceBatches, "decode", hasty)
    recorder = recorded(1)
    assert [*labels_of(recorder.life)] != recorder.labels
