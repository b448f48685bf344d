"""Snapshot slots: each holds a copy of all linear layers' states of one sequence at one page boundary."""

from firmtoken.runtime.memory.shortage import NoSnapshots


class SnapshotSlots:
    """Slots 0..num_slots-1."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots - 1, -1, -1))
        self._taken: set[int] = set()
        self.num_slots = num_slots

    @property
    def num_free(self) -> int:
        """Slots that `take` can hand out."""
        return len(self._free)

    @property
    def free(self) -> tuple[int, ...]:
        """The slots that `take` can hand out."""
        return tuple(self._free)

    def take(self) -> int:
        """A free slot."""
        if not self._free:
            raise NoSnapshots(f"all {self.num_slots} snapshot slots are taken")
        slot = self._free.pop()
        self._taken.add(slot)
        return slot

    def give(self, slot: int) -> None:
        """A slot that the caller took."""
        assert slot in self._taken, f"snapshot slot {slot} is free already"
        self._taken.remove(slot)
        self._free.append(slot)
