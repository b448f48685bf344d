"""One tree over another: mappings merge, everything else replaces, `null` removes."""

from dataclasses import replace

from firmtoken.schema.diagnostic import SET, Place
from firmtoken.schema.model import SOURCE_KINDS
from firmtoken.schema.tree import Entry, MapNode, Scalar


def merge(base: MapNode, over: MapNode) -> MapNode:
    entries = {entry.key: entry for entry in base.entries}
    for entry in over.entries:
        below = entries.get(entry.key)
        if below is None:
            entries[entry.key] = entry
        elif isinstance(entry.value, Scalar) and entry.value.value is None:
            del entries[entry.key]
        else:
            entries[entry.key] = merge_entry(below, entry)
    return MapNode(
        place=nearer(base.place, over.place), entries=tuple(entries.values()), whole=over.whole
    )


def merge_entry(below: Entry, entry: Entry) -> Entry:
    if not isinstance(below.value, MapNode) or not isinstance(entry.value, MapNode):
        return entry
    if entry.value.whole or names_source(entry.key, entry.value):
        return entry
    place = nearer(below.place, entry.place)
    return replace(entry, place=place, value=merge(below.value, entry.value))


def nearer(below: Place, over: Place) -> Place:
    """Where a merged mapping stands: in the upper file, for there one edits; `--set` is no file."""
    return below if over.file == SET else over


def names_source(key: str, over: MapNode) -> bool:
    """A checkpoint that is named anew keeps nothing of the one below, least of all its revision."""
    return key == "source" and any(entry.key in SOURCE_KINDS for entry in over.entries)
