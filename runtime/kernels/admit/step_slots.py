"""Slots for a decode step's experts, found by one program (Triton, no torch): `admit`'s contract on the device.

The list of misses is the program's scratch until it is written: first what each slot is worth, then its place in the
order of eviction and the inverse of that order.
"""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.early_start import start_next_after_last

INTEGERS = ("num_pairs", "first", "count", "overflow")
PART = tl.constexpr(32)
"""Pairs, experts or slots that the others are compared with at a time."""
OLDEST = tl.constexpr(2**30 - 1)
"""Steps since a slot's last use, as far as they are told apart: a month at 400 a second. Empty slots are older."""


# Integers are not specialised: layers differ in where their slots begin, and must share one form.
@triton.jit(do_not_specialize=INTEGERS)
def admit_step(
    ids_ptr,
    table_ptr,
    lru_ptr,
    slots_ptr,
    miss_ptr,
    held_ptr,
    num_pairs,
    first,
    count,
    overflow,
    PAIRS: tl.constexpr,
    EXPERTS: tl.constexpr,
    EARLY: tl.constexpr,
):
    """One program, of as many warps as it likes.

    ids, slots: int32 [num_pairs]; PAIRS a power of two from there on. table int32 [EXPERTS], lru int64 [count], miss
    int32 [1 + 2 EXPERTS], held int32 [1]: the first slot of a range that nobody may evict from, or -1. The layer's
    slots are `first` to `first + count - 1`, those to overflow begin at `overflow`. EARLY: `early_start.py`.
    """
    if EARLY:
        start_next_after_last()
    pair = tl.arange(0, PAIRS)
    ids = tl.load(ids_ptr + pair, mask=pair < num_pairs, other=-1)
    found = tl.load(table_ptr + ids, mask=ids >= 0, other=-1)
    leader = _first_of_same(ids_ptr, ids, num_pairs, PAIRS)
    misses = (ids >= 0) & (leader == pair) & (found < 0)
    num_misses = tl.sum(misses.to(tl.int32), axis=0)

    slot = tl.arange(
        0, triton.next_power_of_2(EXPERTS)
    )  # of the layer's range, which has at most one for each expert
    there = slot < count
    stamp = tl.load(lru_ptr + slot, mask=there, other=0)
    now = tl.max(stamp, axis=0) + 1
    used = _used(ids_ptr, table_ptr, slot + first, num_pairs, PAIRS)
    taken = used
    if num_misses > 0:
        scratch_ptr = miss_ptr + 1
        occupied = _occupied(table_ptr, slot + first, EXPERTS)
        age = tl.minimum(now - stamp, OLDEST).to(tl.int32)
        free = there & (used == 0) & (tl.load(held_ptr) != first)
        worth = tl.where(free, tl.where(occupied > 0, age, age + OLDEST + 1), -1)
        order = _order(scratch_ptr, slot, worth, there, count, EXPERTS)
        num_free = tl.sum(free.to(tl.int32), axis=0)
        tl.debug_barrier()  # everybody has read what the slots are worth
        tl.store(scratch_ptr + slot, tl.where(free, order, EXPERTS), mask=there)
        tl.store(scratch_ptr + EXPERTS + order, slot, mask=free)
        tl.debug_barrier()
        _forget_evicted(table_ptr, scratch_ptr, first, count, num_misses, EXPERTS)
        number = tl.cumsum(misses.to(tl.int32), axis=0) - 1
        evicts = misses & (number < num_free)
        victim = tl.load(scratch_ptr + EXPERTS + number, mask=evicts, other=0) + first
        tl.store(table_ptr + ids, victim, mask=evicts)
        found = tl.where(evicts, victim, found)
        found = tl.where(misses & (number >= num_free), overflow + number - num_free, found)
        taken = ((used > 0) | (free & (order < num_misses))).to(tl.int32)
        tl.debug_barrier()  # the scratch is nobody's any more
        tl.store(miss_ptr + 1 + 2 * number, ids, mask=misses)
        tl.store(miss_ptr + 2 + 2 * number, found, mask=misses)
    tl.store(miss_ptr, num_misses)
    tl.store(lru_ptr + slot, tl.zeros_like(stamp) + now, mask=there & (taken > 0))
    tl.store(slots_ptr + pair, found, mask=pair < num_pairs)
    tl.debug_barrier()
    found = tl.load(slots_ptr + leader, mask=(ids >= 0) & (leader < pair), other=-1)
    tl.store(slots_ptr + pair, found, mask=(ids >= 0) & (leader < pair))


@triton.jit
def _first_of_same(ids_ptr, ids, num_pairs, PAIRS: tl.constexpr):
    """Number of the first pair that has the same expert."""
    leader = tl.full((PAIRS,), PAIRS, tl.int32)
    for start in range(0, num_pairs, PART):
        other = start + tl.arange(0, PART)
        others = tl.load(ids_ptr + other, mask=other < num_pairs, other=-2)
        same = ids[:, None] == others[None, :]
        leader = tl.minimum(leader, tl.min(tl.where(same, other[None, :], PAIRS), axis=1))
    return leader


@triton.jit
def _used(ids_ptr, table_ptr, slot, num_pairs, PAIRS: tl.constexpr):
    """1 for each slot that a pair finds its expert in, else 0."""
    used = tl.zeros(slot.shape, tl.int32)
    for start in range(0, num_pairs, PART):
        pair = start + tl.arange(0, PART)
        ids = tl.load(ids_ptr + pair, mask=pair < num_pairs, other=-1)
        found = tl.load(table_ptr + ids, mask=ids >= 0, other=-1)
        used = tl.maximum(used, tl.max((slot[:, None] == found[None, :]).to(tl.int32), axis=1))
    return used


@triton.jit
def _occupied(table_ptr, slot, EXPERTS: tl.constexpr):
    """1 for each slot that the table names, else 0."""
    occupied = tl.zeros(slot.shape, tl.int32)
    for start in range(0, EXPERTS, PART):
        expert = start + tl.arange(0, PART)
        found = tl.load(table_ptr + expert, mask=expert < EXPERTS, other=-1)
        same = (slot[:, None] == found[None, :]).to(tl.int32)
        occupied = tl.maximum(occupied, tl.max(same, axis=1))
    return occupied


@triton.jit
def _order(scratch_ptr, slot, worth, there, count, EXPERTS: tl.constexpr):
    """Place of each slot in the order of eviction: worth most first, the lower number among equals."""
    tl.store(scratch_ptr + slot, worth, mask=there)
    tl.debug_barrier()
    order = tl.zeros(slot.shape, tl.int32)
    for start in range(0, count, PART):
        other = start + tl.arange(0, PART)
        others = tl.load(scratch_ptr + other, mask=other < count, other=-1)
        before = others[None, :] > worth[:, None]
        before |= (others[None, :] == worth[:, None]) & (other[None, :] < slot[:, None])
        order += tl.sum((before & (other < count)[None, :]).to(tl.int32), axis=1)
    return order


@triton.jit
def _forget_evicted(table_ptr, order_ptr, first, count, num_misses, EXPERTS: tl.constexpr):
    """Experts whose slots others get leave the table."""
    expert = tl.arange(0, triton.next_power_of_2(EXPERTS))
    slot = tl.load(table_ptr + expert, mask=expert < EXPERTS, other=-1) - first
    inside = (slot >= 0) & (slot < count)
    order = tl.load(order_ptr + slot, mask=inside, other=EXPERTS)
    tl.store(table_ptr + expert, -1, mask=inside & (order < num_misses))


def admit_builds(launch: Launch, *, num_experts: int, warps: int, early: int) -> tuple[Build, ...]:
    """A form for each number of pairs that is a power of two, up to the largest launch."""
    chosen = launch.columns("ids")
    forms = []
    for rows in range(1, launch.num_rows + 1):
        forms.append(_build(padded(rows * chosen), num_experts, warps, early))
    return tuple(forms)


def padded(num_pairs: int) -> int:
    """PAIRS of `admit_step`."""
    return int(triton.next_power_of_2(num_pairs))


def _build(pairs: int, num_experts: int, warps: int, early: int) -> Build:
    pointers = dict.fromkeys(("ids", "table", "lru", "slots", "miss", "held"), "*i32")
    pointers["lru"] = "*i64"
    return Build(
        name=f"{pairs} pairs",
        function=admit_step,
        arguments={f"{name}_ptr": kind for name, kind in pointers.items()}
        | dict.fromkeys(INTEGERS, "i32"),
        constants={"PAIRS": pairs, "EXPERTS": num_experts, "EARLY": bool(early)},
        num_warps=warps,
        grid=(1,),
    )
