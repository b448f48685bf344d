"""What was written, before anything is checked: scalars, lists and mappings, each with its place."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from firmtoken.schema.diagnostic import Place

Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    place: Place
    value: Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class ListNode:
    place: Place
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    key: str
    place: Place
    """Of the key."""
    value: "Node"


@dataclass(frozen=True, slots=True, kw_only=True)
class MapNode:
    place: Place
    entries: tuple[Entry, ...]
    whole: bool = False
    """Names its own base (a file, an `extends`), so it replaces what it is merged over."""

    def find(self, key: str) -> Entry | None:
        return next((entry for entry in self.entries if entry.key == key), None)


Node = Scalar | ListNode | MapNode
Step = str | int


def plain(node: Node) -> object:
    """The values alone."""
    match node:
        case Scalar():
            return node.value
        case ListNode():
            return [plain(item) for item in node.items]
        case MapNode():
            return {entry.key: plain(entry.value) for entry in node.entries}


def key_place(root: MapNode, steps: Sequence[Step]) -> Place:
    """Where the key of the deepest step that was written stands."""
    return [place for place, _ in trail(root, steps)][-1]


def value_place(root: MapNode, steps: Sequence[Step]) -> Place:
    """Where the value stands; for a mapping, `null`, or a step that was not written: the nearest key."""
    place, node = list(trail(root, steps))[-1]
    stands_alone = isinstance(node, ListNode) or (
        isinstance(node, Scalar) and node.value is not None
    )
    return node.place if stands_alone else place


def written(root: MapNode, steps: Sequence[Step]) -> bool:
    return len(list(trail(root, steps))) == len(steps) + 1


def trail(root: MapNode, steps: Sequence[Step]) -> Iterator[tuple[Place, Node]]:
    """Key place and node of each step that was written, from the root on."""
    node: Node = root
    yield root.place, root
    for step in steps:
        if isinstance(node, MapNode) and isinstance(step, str):
            entry = node.find(step)
            if entry is None:
                return
            place, node = entry.place, entry.value
        elif isinstance(node, ListNode) and isinstance(step, int) and step < len(node.items):
            node = node.items[step]
            place = node.place
        else:
            return
        yield place, node
