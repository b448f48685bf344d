"""Cards tell the truth: no kernel of the CPU reads or writes what its step does not declare (A2 of prototype.md 7)."""

from collections.abc import Callable, Iterator

import pytest
import torch
from tests.proofs.axioms import Axioms
from tests.proofs.scenario import Task, operands
from tests.proofs.tiny_plans import SCHEDULES, tiny_plan

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.kernels import CARDS

OTHERS = {
    "second choices": (
        "kernels.gdn=torch_recurrent",
        "kernels.attention=torch_sdpa",
        "kernels.moe_gate_up=torch_gather",
        "kernels.moe_down=torch_gather",
    ),
    "packed experts": ("kernels.moe_gate_up=torch_nvfp4", "kernels.moe_down=torch_nvfp4"),
    "prescribed experts": ("model.source={synthetic: {seed: 1, routes: q36}}",),
}
PLANS = {**{name: (name,) for name in SCHEDULES}, **{n: ("hybrid", *o) for n, o in OTHERS.items()}}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def axioms() -> Iterator[Callable[[Plan], Axioms]]:
    """`axioms(plan)`, once a plan."""
    made: dict[int, Axioms] = {}

    def make(plan: Plan) -> Axioms:
        return made.setdefault(id(plan), Axioms(plan))

    yield make
    for each in made.values():
        each.close()


@pytest.mark.parametrize("name", PLANS)
def test_no_kernel_touches_what_its_step_does_not_declare(
    name: str, axioms: Callable[[Plan], Axioms]
) -> None:
    assert axioms(tiny_plan(*PLANS[name])).faults() == []


def test_every_kernel_of_the_cpu_is_looked_at() -> None:
    ready = {
        (card.op, card.name) for card in CARDS if "cpu" in card.devices and card.status == "ready"
    }
    looked_at = {
        (row.op, row.kernel)
        for arguments in PLANS.values()
        for row in tiny_plan(*arguments).kernels
    }
    assert looked_at == ready


def the(tasks: tuple[Task, ...], label: str) -> Task:
    return next(task for task in tasks if task.label == label)


Plant = Callable[[Axioms, Task], None]


def read_another_value(axioms: Axioms, task: Task) -> None:
    """`combine` adds what `moe_gate_up` left."""
    other = axioms.operand(the(axioms.tasks, "decode.moe_gate_up(l=1)"), "a")
    axioms.operand(task, "hid").add_(other[0, 0])


def read_rows_of_nobody(axioms: Axioms, task: Task) -> None:
    """It looks one row further than the launch has rows."""
    hid = axioms.operand(task, "hid")
    further = torch.as_strided(hid, (hid.shape[0] + 1, hid.shape[1]), hid.stride())
    hid[0].add_(further[-1])


def write_rows_of_nobody(axioms: Axioms, task: Task) -> None:
    """It writes one row further than the launch has rows."""
    hid = axioms.operand(task, "hid")
    torch.as_strided(hid, (hid.shape[0] + 1, hid.shape[1]), hid.stride())[-1] = 1.0


def write_its_input(axioms: Axioms, task: Task) -> None:
    """Scratch in an input that others may still read."""
    axioms.operand(task, "rows").zero_()


PLANTS: dict[str, tuple[Plant, str]] = {
    "reads another value": (read_another_value, "other words with poison"),
    "reads a row too many": (read_rows_of_nobody, "other words with poison"),
    "writes a row too many": (write_rows_of_nobody, "words that it does not declare"),
    "writes its input": (write_its_input, "words that it does not declare"),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_seen(plant: str, axioms: Callable[[Plan], Axioms]) -> None:
    bench = axioms(tiny_plan("hybrid"))
    spoil, complaint = PLANTS[plant]
    where = "decode.combine(l=1)"

    def spoilt(task: Task) -> Callable[[], object] | None:
        def run() -> object:
            result = task.run()
            spoil(bench, task)
            return result

        return run if task.label == where else None

    found = bench.faults(spoilt)
    assert found
    assert all(fault.startswith(where) and complaint in fault for fault in found), found


def test_pairs_that_may_share_bytes_give_the_same_when_they_do(
    axioms: Callable[[Plan], Axioms],
) -> None:
    """`in_place` of a card: the input's bytes hold the output afterwards, as if it had bytes of its own."""
    plan = tiny_plan("hybrid")
    bench = axioms(plan)
    pairs = {(row.op, row.kernel): row.in_place for row in plan.kernels if row.in_place}
    assert pairs
    same: list[bool] = []

    def spoilt(task: Task) -> Callable[[], object] | None:
        if task.launch is None:
            return None
        step, bound = task.launch.step.step, operands(task.launch)
        for source, target in pairs.get((step.op, step.kernel), ()):
            if source in bound and target in bound:
                same.append(run_in_place(task, source, target))
        return None

    def run_in_place(task: Task, source: str, target: str) -> bool:
        assert task.launch is not None and task.batch is not None
        bound = operands(task.launch)
        apart, together = ({name: value.clone() for name, value in bound.items()} for _ in "12")
        together[target] = together[source]
        task.launch.call(task.batch, **apart)
        task.launch.call(task.batch, **together)
        return torch.equal(apart[target], together[target])

    bench.faults(spoilt)
    assert same and all(same)
