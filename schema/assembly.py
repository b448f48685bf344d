"""Files -> one tree: references are followed, `extends` merged, relative paths made absolute."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os.path import normpath
from pathlib import Path
from typing import Literal

from firmtoken.schema.diagnostic import Diagnostic, Fault, Place, ProfileError, diagnose
from firmtoken.schema.merge import merge
from firmtoken.schema.references import File, read_bytes, referenced_file
from firmtoken.schema.source import read_yaml
from firmtoken.schema.tree import Entry, MapNode, Node, Scalar

EXTENDS = "extends"
MAX_FILES = 8
"""The longest chain of files that extend or refer to each other."""

Kind = Literal["", "hardware", "model"]
"""Which part of a profile a file or mapping is; empty: all of it."""
PARTS: tuple[Kind, ...] = ("hardware", "model")
NOT_EXTENDED: Mapping[Kind, tuple[str, ...]] = {
    "": ("description",),
    "hardware": (),
    "model": (),
}
"""What a profile says of itself alone: "on one RTX 4090" is untrue of one that extends it for another card."""
LOG_FILE = ("server", "log_file")
TEXT = ("perplexity", "text")
WORDS: Mapping[tuple[str, ...], tuple[str, ...]] = {
    LOG_FILE: ("auto", "off"),
    TEXT: ("auto",),
    ("model", *TEXT): ("auto",),
}
"""Values of these fields that are no path; a file of that name is `./auto`."""
PATHS: Mapping[Kind, tuple[tuple[str, ...], ...]] = {
    "": (
        ("model", "source", "path"),
        ("model", *TEXT),
        ("server", "api_keys", "file"),
        LOG_FILE,
    ),
    "hardware": (),
    "model": (("source", "path"), TEXT),
}
"""Values that name something on disk, relative to the file in which they are written."""


@dataclass(slots=True, kw_only=True)
class Assembly:
    """Follows one profile through its files and keeps what went wrong on the way."""

    faults: list[Diagnostic] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    """Parts whose file could not be read: that they lack fields is no news."""

    def document(self, file: File, kind: Kind, chain: tuple[File, ...]) -> MapNode:
        """The tree of a whole file."""
        node = self.read(file, kind)
        return self.settle(node, file, kind, (*chain, file))

    def read(self, file: File, kind: Kind) -> MapNode:
        start = Place(file=file.shown, line=1, column=1)
        nothing = MapNode(place=start, entries=())
        data = read_bytes(file)
        if isinstance(data, Fault):
            self.refuse(data, start, kind, broken=True)
            return nothing
        try:
            node = read_yaml(data, file.shown)
        except ProfileError as error:
            self.faults += error.diagnostics
            self.broken.append(kind)
            return nothing
        if isinstance(node, MapNode):
            return replace(node, place=start)
        fault = Fault(
            code="not_a_mapping",
            message="expected a mapping of fields",
            hint="write `field: value` lines; `ft schema` prints every field that there is",
        )
        self.refuse(fault, node.place, kind, broken=True)
        return nothing

    def settle(self, node: MapNode, file: File, kind: Kind, chain: tuple[File, ...]) -> MapNode:
        """The tree of a mapping: its references followed, itself merged over what it extends."""
        entries = (entry for entry in node.entries if entry.key != EXTENDS)
        own = replace(node, entries=tuple(entries))
        for steps in PATHS[kind]:
            own = absolute(own, steps, file.path.parent, WORDS.get(steps, ()))
        if kind == "":
            settled = (self.part(entry, file, chain) for entry in own.entries)
            own = replace(own, entries=tuple(entry for entry in settled if entry is not None))
        base = node.find(EXTENDS)
        if base is None:
            return own
        below = self.follow(base.value, file, kind, chain, EXTENDS)
        if below is None:
            return replace(own, whole=True)
        kept = tuple(entry for entry in below.entries if entry.key not in NOT_EXTENDED[kind])
        return replace(merge(replace(below, entries=kept), own), whole=True)

    def part(self, entry: Entry, file: File, chain: tuple[File, ...]) -> Entry | None:
        """An entry of a profile, with the file of its hardware or model read."""
        kind = next((part for part in PARTS if part == entry.key), None)
        value: Node | None = entry.value
        if kind is not None and isinstance(value, MapNode):
            value = self.settle(value, file, kind, chain)
        elif kind is not None and isinstance(value, Scalar) and isinstance(value.value, str):
            value = self.follow(value, file, kind, chain, kind)
        return replace(entry, value=value) if value else None

    def follow(
        self, node: Node, file: File, kind: Kind, chain: tuple[File, ...], subject: str
    ) -> MapNode | None:
        """The tree of the file that a reference names."""
        if not isinstance(node, Scalar) or not isinstance(node.value, str):
            found: File | Fault = Fault(
                code="reference",
                message="expected one path",
                hint="for example `extends: ft:tiny-cpu`, or the path of a file"
                if kind == ""
                else "name one file, for example `extends: mine.yaml`",
            )
        else:
            found = referenced_file(node.value, file)
        if isinstance(found, File):
            found = unless_circular(found, chain)
        if isinstance(found, Fault):
            self.refuse(found, node.place, kind, broken=True, subject=subject)
            return None
        return replace(self.document(found, kind, chain), whole=True)

    def refuse(
        self, fault: Fault, place: Place, kind: Kind, *, broken: bool, subject: str = ""
    ) -> None:
        name = f"{kind}.{subject}" if kind and subject == EXTENDS else subject
        self.faults.append(diagnose(fault, place, name))
        if broken:
            self.broken.append(kind)


def unless_circular(found: File, chain: tuple[File, ...]) -> File | Fault:
    trail = [file.path for file in chain]
    if found.path in trail:
        circle = [*chain[trail.index(found.path) :], found]
        return Fault(
            code="circular",
            message=f"files refer to each other in a circle: {' -> '.join(file.shown for file in circle)}",
            hint="name a shipped file (`ft:...`) here, or one that does not lead back to this one",
        )
    if len(chain) >= MAX_FILES:
        return Fault(
            code="too_many_files",
            message=f"more than {MAX_FILES} files in one chain",
            hint="put the fields of some of them into one file",
        )
    return found


def absolute(
    node: MapNode, steps: tuple[str, ...], folder: Path, words: Sequence[str] = ()
) -> MapNode:
    """`node` with the path at `steps`, if there is one that is none of `words`, taken relative to `folder`."""
    entry = node.find(steps[0])
    if entry is None:
        return node
    value: Node = entry.value
    if isinstance(value, MapNode) and len(steps) > 1:
        value = absolute(value, steps[1:], folder, words)
    elif isinstance(value, Scalar) and isinstance(value.value, str) and len(steps) == 1:
        is_path = value.value not in ("", *words)
        value = replace(value, value=normpath(folder / value.value)) if is_path else value
    changed = replace(entry, value=value)
    return replace(node, entries=tuple(changed if each is entry else each for each in node.entries))
