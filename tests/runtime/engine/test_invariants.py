"""The debug mode's check: silent while all is well, and one sentence for each thing that does not hold."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from tests.runtime.engine.simulation import Simulation
from tests.runtime.engine.tiny_limits import TINY

from firmtoken.runtime.engine.invariants import InvariantBroken, check_invariants
from firmtoken.runtime.engine.scheduler import Scheduler
from firmtoken.runtime.engine.sequence import Phase, Sequence
from firmtoken.runtime.memory.prefix_cache import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Two that run, the elder decodes on a hit; two that wait; a cached text that nobody uses."""

    scheduler: Scheduler
    elder: Sequence
    younger: Sequence
    waiting: tuple[Sequence, ...]
    idle: Node
    """A leaf that nobody uses."""


@pytest.fixture
def scene() -> Scene:
    simulation = Simulation(
        replace(TINY, pages=1 + 20, max_num_seqs=2), random.Random(0), stop_token_ids=()
    )
    for prompt, output in (([1] * 9, 1), ([2] * 9, 1)):
        simulation.add(prompt, output)
        simulation.step_until(lambda: simulation.scheduler.idle)
    simulation.add([1] * 9, 20)
    simulation.step()
    simulation.add([3] * 40, 4)
    simulation.add([4] * 9, 4)
    simulation.add([5] * 9, 4)
    simulation.step_until(lambda: any(one.computed for one in simulation.scheduler.running[1:]))
    scheduler = simulation.scheduler
    elder, younger = scheduler.running
    idle = next(node for node in scheduler.holdings.cache.leaves if not node.users)
    check_invariants(scheduler)
    assert (elder.phase, younger.phase) == (Phase.DECODE, Phase.PREFILL)
    assert elder.hit_tokens and younger.computed and len(scheduler.waiting) == 2
    return Scene(
        scheduler=scheduler,
        elder=elder,
        younger=younger,
        waiting=tuple(scheduler.waiting),
        idle=idle,
    )


def lose_a_page(scene: Scene) -> None:
    scene.scheduler.holdings.pages.take(1)


def share_a_page_twice(scene: Scene) -> None:
    scene.scheduler.holdings.pages.share(scene.elder.pages[:1])


def give_a_page_that_is_held(scene: Scene) -> None:
    scene.scheduler.holdings.pages.give(scene.younger.pages[-1:])


def hold_the_sentinel(scene: Scene) -> None:
    scene.younger.pages = (*scene.younger.pages, 0)


def share_a_page_that_is_not_cached(scene: Scene) -> None:
    page = scene.elder.pages[-1:]
    scene.scheduler.holdings.pages.share(page)
    scene.younger.pages += page


def free_a_page_twice(scene: Scene) -> None:
    pool = scene.scheduler.holdings.pages
    pool._free.append(pool._free[0])


def cache_a_page_twice(scene: Scene) -> None:
    leaf = scene.scheduler.holdings.cache._append(scene.idle, (9,) * 4, lone_page(scene))
    leaf.page = scene.idle.page
    leaf.snapshot = scene.scheduler.holdings.snapshots.take()
    scene.scheduler.holdings.cache._owners[leaf.snapshot] = leaf


def lone_page(scene: Scene) -> int:
    (page,) = scene.scheduler.holdings.pages.take(1)
    return page


def lose_a_state_slot(scene: Scene) -> None:
    scene.scheduler.holdings.states.take(1)


def share_a_state_slot(scene: Scene) -> None:
    scene.younger.shadow = scene.elder.shadow


def have_one_state_slot_for_both(scene: Scene) -> None:
    scene.elder.shadow = scene.elder.live


def have_the_state_of_padded_rows(scene: Scene) -> None:
    scene.elder.live = 0


def lose_a_snapshot(scene: Scene) -> None:
    scene.scheduler.holdings.snapshots.take()


def own_a_free_snapshot(scene: Scene) -> None:
    assert scene.idle.snapshot is not None
    scene.scheduler.holdings.snapshots.give(scene.idle.snapshot)


def own_a_snapshot_in_secret(scene: Scene) -> None:
    assert scene.idle.snapshot is not None
    del scene.scheduler.holdings.cache._owners[scene.idle.snapshot]


def own_a_snapshot_together(scene: Scene) -> None:
    assert scene.elder.node is not None
    scene.elder.node.snapshot = scene.idle.snapshot


def count_a_user_too_many(scene: Scene) -> None:
    scene.idle.users += 1


def keep_a_lock_that_is_nobodys(scene: Scene) -> None:
    scene.scheduler.holdings.cache.lock(scene.idle)


def lock_what_left_the_cache(scene: Scene) -> None:
    cache, node, pages = scene.scheduler.holdings.cache, scene.younger.node, scene.younger.pages
    assert node is not None
    cached = cache.pages_of(scene.idle)
    scene.younger.node, scene.younger.pages = scene.idle, cached + pages[len(cached) :]
    cache.unlock(node)
    cache.evict(20)


def count_one_evictable_too_few(scene: Scene) -> None:
    scene.scheduler.holdings.cache.evictable -= 1


def forget_a_leaf(scene: Scene) -> None:
    scene.scheduler.holdings.cache._leaves.discard(scene.idle)


def lead_nowhere(scene: Scene) -> None:
    scene.scheduler.holdings.cache._forget_snapshot(scene.idle)


def retire_what_nobody_uses(scene: Scene) -> None:
    scene.idle.retired = True


def hang_in_the_wrong_place(scene: Scene) -> None:
    scene.idle.tokens = (9,) * 4


def lose_the_place_in_the_cache(scene: Scene) -> None:
    scene.younger.node = None


def hold_other_pages_than_locked(scene: Scene) -> None:
    scene.elder.pages = (scene.elder.pages[-1], *scene.elder.pages[1:])


def promise_what_is_not_there(scene: Scene) -> None:
    scene.younger.reserved += scene.scheduler.holdings.available + 1


def commit_more_than_pages_hold(scene: Scene) -> None:
    scene.younger.target = scene.younger.computed = len(scene.younger.pages) * 4 + 1
    scene.younger.target += 1


def decode_behind_the_text(scene: Scene) -> None:
    scene.elder.computed -= 1


def prefill_what_is_computed(scene: Scene) -> None:
    scene.younger.target = scene.younger.computed


def shadow_beyond_the_text(scene: Scene) -> None:
    scene.younger.shadow_len = scene.younger.computed + 4


def run_while_waiting(scene: Scene) -> None:
    scene.waiting[0].phase = Phase.DECODE


def wait_while_running(scene: Scene) -> None:
    scene.elder.phase = Phase.WAITING


def be_nowhere(scene: Scene) -> None:
    scene.scheduler.waiting.remove(scene.waiting[0])


def be_in_two_places(scene: Scene) -> None:
    scene.scheduler.waiting.insert(0, scene.elder)


def run_after_the_end(scene: Scene) -> None:
    del scene.scheduler._sequences[scene.elder.request_id]


def jump_the_queue(scene: Scene) -> None:
    scene.scheduler.waiting.reverse()


def run_out_of_order(scene: Scene) -> None:
    scene.scheduler.holdings.members.reverse()


def be_too_many(scene: Scene) -> None:
    scene.scheduler.limits = replace(scene.scheduler.limits, max_num_seqs=1)


def be_passed_too_often(scene: Scene) -> None:
    scene.waiting[0].passed = 5


def give_way_too_often(scene: Scene) -> None:
    scene.waiting[0].preemptions = 3


def wait_with_pages(scene: Scene) -> None:
    scene.waiting[0].pages = scene.elder.pages


def wait_with_committed_tokens(scene: Scene) -> None:
    scene.waiting[0].computed = 4


BREAKAGES: list[tuple[Callable[[Scene], None], str]] = [
    (lose_a_page, r"page \d+ has 1 references and 0 holders"),
    (share_a_page_twice, r"page \d+ has \d references and \d holders"),
    (give_a_page_that_is_held, r"page \d+ has 1 references and 2 holders"),
    (hold_the_sentinel, "somebody holds the sentinel page"),
    (share_a_page_that_is_not_cached, r"2 sequences share page \d+, which is not cached"),
    (free_a_page_twice, "the free list of pages has one twice"),
    (cache_a_page_twice, r"page \d+ is cached 2 times"),
    (lose_a_state_slot, r"state slots \[\d\] belong to nobody and are not free"),
    (share_a_state_slot, r"state slot \d is used 2 times"),
    (have_one_state_slot_for_both, r"state slot \d is used 2 times"),
    (have_the_state_of_padded_rows, "a sequence has the state slot of padded rows"),
    (lose_a_snapshot, r"snapshot slots \[\d\] belong to nobody and are not free"),
    (own_a_free_snapshot, r"snapshot slots \[\d\] are free and belong to somebody"),
    (own_a_snapshot_in_secret, "the owners of snapshots are not the nodes that have them"),
    (own_a_snapshot_together, "two nodes own one snapshot slot"),
    (count_a_user_too_many, r"page \d+ counts 1 users and has 0"),
    (keep_a_lock_that_is_nobodys, r"page \d+ has 1 locks of 0 sequences"),
    (lock_what_left_the_cache, "1 sequences locked pages that left the cache"),
    (count_one_evictable_too_few, r"\d pages count as evictable, \d are"),
    (forget_a_leaf, r"\d leaves are known, \d exist"),
    (lead_nowhere, r"page \d+ has no user and leads to no snapshot"),
    (retire_what_nobody_uses, r"page \d+ is retired and has no user"),
    (hang_in_the_wrong_place, r"page \d+ hangs in the wrong place"),
    (lose_the_place_in_the_cache, "request 3 has no place in the cache"),
    (hold_other_pages_than_locked, "request 2 does not hold the pages that it locked"),
    (promise_what_is_not_there, "1 pages more are promised than exist"),
    (commit_more_than_pages_hold, r"request 3 has \d+ committed tokens in \d pages"),
    (decode_behind_the_text, r"request 2 decodes at \d+ of \d+"),
    (prefill_what_is_computed, "request 3 prefills what it has"),
    (shadow_beyond_the_text, r"the shadow state of request 3 covers \d+ of \d+ tokens"),
    (run_while_waiting, "waiting request 4 is in decode"),
    (wait_while_running, "request 2 runs in phase waiting"),
    (be_nowhere, r"requests \[4\] are nowhere"),
    (be_in_two_places, "request 2 is in 2 places"),
    (run_after_the_end, r"requests \[2\] have ended"),
    (jump_the_queue, "the queue is out of order"),
    (run_out_of_order, "the members are out of order"),
    (be_too_many, "2 sequences run, 1 may"),
    (be_passed_too_often, "waiting request 4 was passed 5 times, 4 are allowed"),
    (give_way_too_often, "request 4 gave way 3 times, 2 are allowed"),
    (wait_with_pages, "waiting request 4 holds something"),
    (wait_with_committed_tokens, "waiting request 4 has committed tokens"),
]


@pytest.mark.parametrize(
    ("breakage", "sentence"), BREAKAGES, ids=[breakage.__name__ for breakage, _ in BREAKAGES]
)
def test_what_does_not_hold_is_named(
    scene: Scene, breakage: Callable[[Scene], None], sentence: str
) -> None:
    breakage(scene)
    with pytest.raises(InvariantBroken, match=f"^({sentence})$"):
        check_invariants(scene.scheduler)


def test_a_retired_cache_is_in_order_while_somebody_uses_it(scene: Scene) -> None:
    scene.scheduler.holdings.retire_cache()
    check_invariants(scene.scheduler)
    assert scene.elder.node is not None and scene.younger.node is not None
    retired = [node.retired for node in scene.scheduler.holdings.cache.nodes()]
    assert retired == [True] * (scene.elder.node.depth + scene.younger.node.depth)
    scene.scheduler.abort_all()
    check_invariants(scene.scheduler)
    assert scene.scheduler.holdings.pages.num_free == 20
