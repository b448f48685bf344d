"""Before the first request each kernel is held against its reference: right ones pass, planted faults are found."""

import math
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from tests.runtime.engine import reference_kernels
from tests.runtime.engine.conftest import fill_weights

from firmtoken.compiler.ops import find_op
from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.plan_json import plan_to_json
from firmtoken.runtime.engine import child as engine_process
from firmtoken.runtime.engine import program
from firmtoken.runtime.engine.channel import Channel
from firmtoken.runtime.engine.check_bounds import CHECKS, SUMS, difference, routed
from firmtoken.runtime.engine.check_rows import cases, reference_batches, spread
from firmtoken.runtime.engine.messages import Start
from firmtoken.runtime.engine.position import Position
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.engine.self_check import (
    Checker,
    KernelWrong,
    check_kernels,
    hint_for,
    summary,
)
from firmtoken.runtime.engine.streams import Streams
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.kernels.device_rows import DeviceRows
from firmtoken.runtime.kernels.operand_order import ORDERED
from firmtoken.runtime.kernels.sample.philox import uniform
from firmtoken.runtime.memory import arena
from firmtoken.runtime.memory.arena import Arena
from firmtoken.runtime.memory.device_memory import DeviceMemory
from firmtoken.schema.load import load_profile

CUDA = Path(__file__).parents[2] / "device" / "tiny-cuda.yaml"
CPU = Path(__file__).parents[3] / "profiles" / "tiny-cpu.yaml"
SMALL = ("hardware.gpu.memory=4GiB", "serving.context=4k", "schedule.prefill_chunk=512")
NOT_CHECKED = {"admit", "resolve", "fetch", "mark"}
"""They write no numbers of a model: slots, and copies that `fetch` makes of what was checked when it was read."""


def alive() -> None:
    """Nobody watches a test."""


def compiled(path: Path, *overrides: str) -> Plan:
    return compile_profile(load_profile(str(path), overrides).profile, CARDS)


@pytest.fixture(scope="module")
def without_gpu() -> Iterator[None]:
    """A plan for a GPU on the CPU: streams are threads, nothing is pinned."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arena, "pin", lambda *_: None)
        patch.setattr(
            program,
            "open_streams",
            lambda plan, position, *_, **__: (Streams(plan.streams.names, position), None),
        )
        yield


@pytest.fixture(scope="module")
def plan() -> Plan:
    return reference_kernels.stand_in(compiled(CUDA, *SMALL))


@pytest.fixture(scope="module")
def interpreter(without_gpu: None, plan: Plan) -> Iterator[Interpreter]:
    torch.manual_seed(0)
    made = Interpreter(plan, Arena(plan.spaces, {}))
    fill_random(plan, made)
    yield made
    made.close()


def fill_random(plan: Plan, interpreter: Interpreter) -> None:
    """Weights of unit scale in every format."""
    views = interpreter.views
    for weight in plan.weights:
        count = sum(weight.axis in ("layer", kind) for kind in plan.model.layer_kinds)
        for ordinal in range(count if weight.axis else 1):
            for section in views.sections(weight, ordinal).values():
                fill_section(section, weight.shape[-1])
    for part in views.experts.parts.values():
        fill_section(part, part.shape[-1])


def fill_section(section: torch.Tensor, columns: int) -> None:
    if section.dtype == torch.uint8:
        section.random_(0, 256)
    elif section.dim() == 1:
        section.fill_(0.1)
    else:
        section.copy_(torch.randn(section.shape) / math.sqrt(columns))


@pytest.fixture
def planted() -> Iterator[dict[str, reference_kernels.Fault]]:
    yield reference_kernels.PLANTED
    reference_kernels.PLANTED.clear()


def test_right_kernels_pass_and_leave_nothing_behind(plan: Plan, interpreter: Interpreter) -> None:
    found = check_kernels(plan, interpreter, alive)
    ops = {(row.op, row.phase) for row in plan.kernels if row.op in CHECKS}
    assert {(one.op, one.phase) for one in found} == ops
    sizes = {one.rows for one in found if one.op == "linear"}
    assert sizes >= {*plan.schedule.graph_batch_sizes, 1, 37, 197, 512}
    assert "compute what their references do" in summary(found)
    weights = {weight.space for weight in plan.weights} | {
        row.space for row in plan.buffers if row.dtype == "slot"
    }
    for space in plan.spaces:
        if space.name not in weights:
            raw = interpreter.views._arena.bytes_of(space.name, 0, space.bytes)
            assert not raw.any(), space.name


def last_row(name: str) -> reference_kernels.Fault:
    def forget(rows: DeviceRows, given: dict[str, Any]) -> None:
        given[name][-1] = torch.nan

    return forget


def larger(name: str) -> reference_kernels.Fault:
    def scale(rows: DeviceRows, given: dict[str, Any]) -> None:
        given[name].mul_(1.03)

    return scale


def turned(name: str) -> reference_kernels.Fault:
    def turn(rows: DeviceRows, given: dict[str, Any]) -> None:
        given[name].copy_(given[name].roll(1, 0))

    return turn


def forgets_the_gate(rows: DeviceRows, given: dict[str, Any]) -> None:
    o = given["o"]
    heads = given["qkv"].view(len(o), -1, 64)  # head_dim
    num_heads = o.shape[1] // 64
    o.div_(heads[:, 1 : 2 * num_heads : 2].flatten(1).sigmoid())


def forgets_the_shadow(rows: DeviceRows, given: dict[str, Any]) -> None:
    slots = rows.shadow[rows.boundary > 0].long()
    if rows.restores is not None:
        slots = rows.restores[:, 2].long()
    given["recurrent_state"][slots] = 0


def writes_the_next_token(rows: DeviceRows, given: dict[str, Any]) -> None:
    raw = given["kv"].view(torch.uint8)
    raw.copy_(raw.roll(1, 2))


def takes_the_next_expert(rows: DeviceRows, given: dict[str, Any]) -> None:
    ids = given["ids"]
    ids.copy_(torch.where(ids < 0, ids, (ids + 1) % 32))


def forgets_the_shared_expert(rows: DeviceRows, given: dict[str, Any]) -> None:
    given["hid"].sub_(given["s"])


def takes_another_token(rows: DeviceRows, given: dict[str, Any]) -> None:
    given["tokens"].add_(1)


def leaves_out_a_slot(rows: DeviceRows, given: dict[str, Any]) -> None:
    given["snaps"][rows.moves[0][1]] = 0


FAULTS = {
    "add_norm": last_row("hid"),
    "attention": forgets_the_gate,
    "combine": forgets_the_shared_expert,
    "copy": turned("target"),
    "embed": turned("hid"),
    "gdn": forgets_the_shadow,
    "head": larger("logits"),
    "linear": last_row("y"),
    "moe_down": larger("rows"),
    "moe_gate_up": larger("a"),
    "qk_norm_rope_kv": writes_the_next_token,
    "restore": forgets_the_shadow,
    "route": takes_the_next_expert,
    "sample": takes_another_token,
    "shared_expert": larger("s"),
    "snapshot": leaves_out_a_slot,
}


@pytest.mark.parametrize("op", FAULTS)
def test_a_kernel_that_goes_wrong_is_refused(
    plan: Plan, interpreter: Interpreter, planted: dict[str, reference_kernels.Fault], op: str
) -> None:
    planted[op] = FAULTS[op]
    with torch.inference_mode():
        checker = Checker(plan, interpreter)
        kinds = [kind for kind in checker.kinds() if kind[0][1].step.step.op == op]
        assert kinds
        for kind in kinds:
            with pytest.raises(KernelWrong, match=rf"`\w+` of `{op}` does not compute"):
                for case, launch in kind:
                    checker.check(case, launch)


def test_every_fault_is_planted_that_the_plan_has_an_op_for(plan: Plan) -> None:
    assert {row.op for row in plan.kernels if row.op in CHECKS} == set(FAULTS)


@pytest.mark.parametrize(
    ("profile", "addressed"),
    [("tiny-cpu.yaml", {"slots", "map"}), ("tiny-cpu-resident.yaml", {"ids"})],
)
def test_references_pass_themselves_however_experts_are_addressed(
    profile: str, addressed: set[str]
) -> None:
    plan = compiled(CPU.with_name(profile))
    interpreter = Interpreter(plan, Arena(plan.spaces, {}))
    fill_weights(plan, interpreter.views)
    found = check_kernels(plan, interpreter, alive)
    assert {one.op for one in found} >= {"moe_gate_up", "moe_down", "gdn", "sample"}
    assert max(one.worst.found for one in found) < 1e-3
    with torch.inference_mode():
        launches = [kind[0][1] for kind in Checker(plan, interpreter).kinds()]
    operands = {
        name for one in launches if one.choice.op == "moe_down" for name in one.kernel.keywords
    }
    assert operands >= addressed
    interpreter.close()


def test_every_op_that_a_gpu_has_a_kernel_for_is_checked() -> None:
    ready = {card.op for card in CARDS if "cuda" in card.devices and card.status == "ready"}
    assert ready - NOT_CHECKED <= set(CHECKS)


def test_what_lies_in_operand_order_is_said_of_kernels_that_exist() -> None:
    cards = {(card.op, card.name): card for card in CARDS}
    for key, operands in ORDERED.items():
        op = find_op(cards[key].op)
        assert set(operands) <= {*op.reads, *op.writes}
        assert "quads" in dict((*cards[key].constants, *cards[key].computed))


def test_a_hint_names_the_way_to_another_kernel_and_that_works() -> None:
    (row,) = (row for row in compiled(CPU).kernels if (row.op, row.phase) == ("gdn", "prefill"))
    hint = hint_for(row)
    (written,) = re.findall(r"`(kernels: .*)`", hint)
    ((key, choice),) = yaml.safe_load(written)["kernels"].items()
    overrides = f"kernels.{key}.avoid=[{', '.join(choice['avoid'])}]"
    (other,) = (
        new for new in compiled(CPU, overrides).kernels if (new.op, new.phase) == ("gdn", "prefill")
    )
    assert other.kernel != row.kernel and other.status == "ready"


def test_a_hint_names_no_kernel_that_is_only_planned() -> None:
    plan = compiled(CUDA, *SMALL)
    (row,) = (row for row in plan.kernels if (row.op, row.phase) == ("attention", "prefill"))
    usable = {other.kernel for other in row.rejected if other.usable}
    ready = {card.name for card in CARDS if card.op == "attention" and card.status == "ready"}
    assert ("avoid" in hint_for(row)) == bool(usable & ready)


def test_a_wrong_kernel_ends_the_start_of_an_engine(
    without_gpu: None,
    plan: Plan,
    monkeypatch: pytest.MonkeyPatch,
    planted: dict[str, reference_kernels.Fault],
) -> None:
    monkeypatch.setattr(
        engine_process, "Arena", lambda spaces, segments, _: Arena(spaces, segments)
    )
    monkeypatch.setattr(engine_process, "open_device", lambda _: DeviceMemory())
    planted["embed"] = last_row("hid")
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(KernelWrong) as refused:
        message = Start(plan=plan_to_json(plan), segments={}, threads=torch.get_num_threads())
        engine_process.start(Channel(theirs), message, time.monotonic, Position())
    torch.set_flush_denormal(False)
    fault = engine_process.describe(refused.value)
    assert fault.code == 3 and fault.hint == refused.value.hint
    assert "kernel `triton` of `embed`" in fault.message


def test_what_a_case_uses_lies_far_apart_and_up_to_the_end() -> None:
    assert spread(3, 1000) == (0, 999, 666, 333, 1)
    assert spread(2, 3) == (0, 2, 1)  # nothing is left to stay as it is
    assert spread(0, 1) == (0,)
    for used in range(1, 40):
        numbers = spread(used, 41)
        assert len(set(numbers)) == len(numbers) == used + 2 and max(numbers) == 40


def test_no_draw_between_two_equals_is_close(plan: Plan) -> None:
    drawn = 0
    for case in cases(plan):
        for batch in reference_batches(plan, case).values():
            for draw in batch.draws:
                assert abs(uniform(draw.seed, draw.position) - 0.5) > 0.1
                drawn += draw.temperature > 0
    assert drawn


def test_a_difference_is_a_part_of_its_own_row() -> None:
    wanted = torch.tensor([[100.0, 1.0], [0.5, 1.0], [0.0, 0.0]])
    assert difference(wanted, wanted, 1) == 0
    assert difference(wanted + torch.tensor([[0.0], [0.1], [0.0]]), wanted, 1) == pytest.approx(0.1)
    assert difference(wanted + torch.tensor([[0.0], [0.0], [1e-9]]), wanted, 1) == math.inf
    assert difference(torch.full((3, 2), torch.nan), wanted, 1) == math.inf
    left_open = torch.full((3, 2), torch.nan)
    assert difference(wanted, left_open, 1) == 0
    assert difference(torch.tensor([1, 2]), torch.tensor([1, 3]), 1) == math.inf


def test_experts_may_be_others_at_near_ties_only() -> None:
    host = {"h": torch.eye(2), "router": torch.tensor([[1.0, 0.0], [1.0 + 1e-6, 0.0], [-1.0, 3.0]])}
    batch: Any = SimpleNamespace(real_rows=1)
    weights = torch.tensor([[0.5, 0.5], [0.0, 0.0]])
    for ids, largest in (([[1, 0], [-1, -1]], SUMS), ([[0, 1], [-1, -1]], SUMS)):
        found = {"ids": torch.tensor(ids), "wts": weights}
        assert max(routed(found, host, batch).values()) < largest
    for ids in ([[0, 2], [-1, -1]], [[1, 1], [-1, -1]], [[0, 1], [0, 1]], [[3, 0], [-1, -1]]):
        found = {"ids": torch.tensor(ids), "wts": weights}
        assert max(routed(found, host, batch).values()) > 0.1, ids
