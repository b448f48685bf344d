"""State slots of linear layers: two a request, live and shadow; slot 0 belongs to padded rows."""

from firmtoken.runtime.memory.shortage import NoStateSlots

PADDING_STATE = 0


class StateSlots:
    """Slots 1..num_slots-1."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots - 1, PADDING_STATE, -1))
        self._taken: set[int] = set()
        self.num_usable = len(self._free)

    @property
    def num_free(self) -> int:
        """Slots that `take` can hand out."""
        return len(self._free)

    @property
    def free(self) -> tuple[int, ...]:
        """The slots that `take` can hand out."""
        return tuple(self._free)

    def take(self, count: int) -> tuple[int, ...]:
        """`count` slots; all or nothing."""
        if count > len(self._free):
            raise NoStateSlots(f"{count} state slots wanted, {len(self._free)} free")
        taken = tuple(self._free.pop() for _ in range(count))
        self._taken.update(taken)
        return taken

    def give(self, slots: tuple[int, ...]) -> None:
        """Slots that the caller took."""
        for slot in slots:
            assert slot in self._taken, f"state slot {slot} is free already"
            self._taken.remove(slot)
            self._free.append(slot)
