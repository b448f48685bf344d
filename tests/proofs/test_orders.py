"""The dynamic proof: in every legal order of its launches a plan gives the same logits, to the last bit.

And the converse: without one of its events, or with a fault of order, some legal order gives other logits.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from tests.compiler.conftest import compiled
from tests.compiler.mutants import MUTANTS, Mutant
from tests.compiler.offload_plans import OFFLOAD
from tests.proofs.orders import NOISE, STRICT, Order, Orders
from tests.proofs.scenario import Results, Task
from tests.proofs.tiny_plans import SCHEDULES, schedule_named, schedule_of, tiny_plan

from firmtoken.compiler.program import Value
from firmtoken.compiler.redundant_waits import RedundantWait, redundant_waits
from firmtoken.compiler.sessions import DRAWN, ENQUEUED

TRIES = len(STRICT) * len(NOISE)
"""Orders within which a fault has to show."""
NUM_ORDERS = 2 * TRIES
"""Of each schedule, in CI; by hand 1,000."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=SCHEDULES)
def proof(request: pytest.FixtureRequest) -> Iterator[tuple[str, Orders]]:
    """A schedule's name and its scenario."""
    orders = Orders(tiny_plan(request.param))
    yield request.param, orders
    orders.close()


def equal(one: Results, other: Results) -> bool:
    """Bit-equal logits, tokens, and hidden states of all rows."""
    mine, theirs = ([*(logits for _, logits in each.logits), *each.hidden] for each in (one, other))
    return one.tokens == other.tokens and all(map(torch.equal, mine, theirs))


def first_that_differs(orders: Orders, wanted: Results, tries: int = TRIES) -> int | None:
    """The first order whose logits differ, or in which a kernel finds nonsense."""
    for number in range(tries):
        try:
            found = orders.run(Order(number))
        except Exception:  # poison may be any index: whatever a kernel raises is another answer
            return number
        if not equal(found, wanted):
            return number
    return None


@pytest.mark.parametrize("name", OFFLOAD)
def test_a_tiny_plan_has_the_schedule_of_the_shipped_one(name: str) -> None:
    shipped = compiled(*OFFLOAD[name])
    assert schedule_of(shipped) == schedule_of(tiny_plan(schedule_named(shipped)))


def test_the_scenario_is_worth_it(proof: tuple[str, Orders]) -> None:
    """Every program runs, sequences differ, experts are missing, and no launch reads poison."""
    name, orders = proof
    results = orders.run(None)
    ran = {name for name, _ in results.logits}
    assert ran == {"decode", "prefill", "extend"}
    assert all(torch.isfinite(logits).all() for _, logits in results.logits)
    flat = [row for _, logits in results.logits for row in logits]
    assert all(not torch.equal(a, b) for i, a in enumerate(flat) for b in flat[:i])
    ops = {task.label.partition("(")[0] for task in orders.tasks}
    assert {"decode.fetch", "prefill.fetch", "extend.fetch"} <= ops
    assert ("park.snapshot" in ops) == (SCHEDULES[name].family == "qwen3_5_moe")
    tiles = {task.label for task in orders.tasks if "t=1" in task.label and "c=0" in task.label}
    assert tiles, "two tiles a chunk"
    later = "w=3" if SCHEDULES[name].in_waves else "c=1"
    assert any(later in task.label for task in orders.tasks), "several chunks or waves"


def differences(orders: Orders, count: int) -> list[int]:
    wanted = orders.run(None)
    return [number for number in range(count) if not equal(orders.run(Order(number)), wanted)]


def test_logits_are_bit_equal_in_random_legal_orders(proof: tuple[str, Orders]) -> None:
    _, orders = proof
    assert differences(orders, NUM_ORDERS) == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_logits_are_bit_equal_in_a_thousand_random_legal_orders(
    proof: tuple[str, Orders],
) -> None:
    _, orders = proof
    assert differences(orders, 1000) == []


def test_strict_orders_reach_both_extremes(proof: tuple[str, Orders]) -> None:
    """The first copy beside `main` is the first launch of all, or the last that anybody waits for."""
    _, orders = proof
    walks = [tuple(orders.walk(Order(number))) for number in range(len(STRICT))]
    ranks = [
        [at for at, number in enumerate(walk) if orders.tasks[number].stream == "link"]
        for walk in walks
    ]
    earliest, latest = min(map(sum, ranks)), max(map(sum, ranks))
    assert latest - earliest > len(ranks[0])


def test_nearly_every_random_order_is_another(proof: tuple[str, Orders]) -> None:
    _, orders = proof
    numbers = range(len(STRICT), len(STRICT) + TRIES)
    assert len({tuple(orders.walk(Order(number))) for number in numbers}) > 0.9 * TRIES


def dropped_events(orders: Orders) -> list[tuple[str, str]]:
    """(launch without its chunk, event) of every wait that is the plan's and not the host's."""
    return list(
        dict.fromkeys(
            (place_of(task), str(event))
            for task in orders.tasks
            for event in task.waits
            if event.name not in (DRAWN.name, ENQUEUED.name)
        )
    )


def place_of(task: Task) -> str:
    """The layer's step, whatever chunk or tile; entry waits belong to a program."""
    return task.label.partition(",c=")[0].partition(",t=")[0]


def is_listed(step: str, event: str, listed: tuple[RedundantWait, ...]) -> bool:
    return any(
        (step.partition("(")[0], event.partition("[")[0]) == (w.step, w.event) for w in listed
    )


def test_without_any_one_event_some_order_gives_other_logits(proof: tuple[str, Orders]) -> None:
    """Layer by layer; an entry wait is dropped from every run of its program."""
    _, orders = proof
    orders.without(lambda task, event: False)
    wanted = orders.run(None)
    silent = []
    for place, event in dropped_events(orders):
        orders.without(
            lambda task, wait, place=place, event=event: (  # type: ignore[misc]  # binds the loop's
                place_of(task) == place and str(wait) == event
            )
        )
        if first_that_differs(orders, wanted) is None:
            silent.append((place, event))
    orders.without(lambda task, event: False)
    assert silent == []


def test_without_what_is_listed_as_redundant_every_order_gives_the_same_logits(
    proof: tuple[str, Orders],
) -> None:
    name, orders = proof
    listed = redundant_waits(tiny_plan(name))
    if SCHEDULES[name].in_waves:
        assert listed == (), "one chunk"
        return
    assert [wait.first_chunk for wait in listed] == [True]

    def of_later_chunks(task: Task, event: Value) -> bool:
        return is_listed(task.label, str(event), listed) and "c=0" not in task.label

    assert any(of_later_chunks(task, event) for task in orders.tasks for event in task.waits)
    orders.without(of_later_chunks)
    assert differences(orders, len(STRICT)) == []
    orders.without(lambda task, event: False)


@pytest.mark.parametrize("label", ["take", "take ahead", "feed"])
def test_a_host_that_does_not_wait_for_what_was_drawn_gives_other_logits(
    proof: tuple[str, Orders], label: str
) -> None:
    """`sample->embed across steps`: it takes tokens too early, or a step starts before it is fed."""
    _, orders = proof
    wanted = orders.run(None)

    def is_dropped(task: Task, event: Value) -> bool:
        if label == "feed":
            return event == ENQUEUED
        return event.name == DRAWN.name and task.label.startswith(label)

    orders.without(is_dropped)
    assert first_that_differs(orders, wanted) is not None
    orders.without(lambda task, event: False)


@pytest.mark.parametrize("label", ["feed ahead", "bring decode"])
def test_tokens_that_go_on_beside_main_are_other_tokens(
    proof: tuple[str, Orders], label: str, make: Callable[..., Orders]
) -> None:
    """A step ahead is fed, and what was drawn is brought, in the order of `main` alone."""
    name, orders = proof
    wanted = orders.run(None)
    broken = make(tiny_plan(name))
    broken.reissue(lambda task: replace(task, stream="link") if task.label == label else task)
    assert first_that_differs(broken, wanted) is not None


OF_ORDER: list[Mutant] = [mutant for mutant in MUTANTS if mutant.order]


@pytest.mark.parametrize("mutant", OF_ORDER, ids=lambda mutant: mutant.name)
def test_a_mutant_of_order_gives_other_logits(
    proof: tuple[str, Orders], mutant: Mutant, make: Callable[..., Orders]
) -> None:
    name, orders = proof
    if mutant.hybrid and SCHEDULES[name].family != "qwen3_5_moe":
        return
    wanted = orders.run(None)
    ignore_holds = mutant.name == "a decode step that ignores a hold"
    broken = make(mutant.change(tiny_plan(name)), ignore_holds=ignore_holds)
    assert first_that_differs(broken, wanted) is not None


@pytest.fixture
def make() -> Iterator[Callable[..., Orders]]:
    """`make(plan)`: its scenario, closed when the test ends."""
    made: list[Orders] = []

    def start(*arguments: object, **options: bool) -> Orders:
        made.append(Orders(*arguments, **options))  # type: ignore[arg-type]  # passed on
        return made[-1]

    yield start
    for orders in made:
        orders.close()
