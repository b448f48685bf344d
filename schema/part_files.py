"""Files of a profile's parts, given where a whole profile is asked for: one fault, not one a field."""

from firmtoken.schema.assembly import EXTENDS, PARTS, Kind
from firmtoken.schema.diagnostic import Fault, literal
from firmtoken.schema.outline import known_fields
from firmtoken.schema.references import SHIPPED, SUFFIX, File, shipped_folder
from firmtoken.schema.tree import MapNode


def part_alone(tree: MapNode) -> Kind:
    """Which part of a profile the whole file is: it has only that part's fields, and some that no profile has."""
    written = {entry.key for entry in tree.entries} - {EXTENDS}
    profile = set(known_fields(()))
    for kind in PARTS:
        if written <= set(known_fields((kind,))) and written - profile:
            return kind
    return ""


def alone(kind: Kind, file: File) -> Fault:
    """The refusal of such a file."""
    return Fault(
        code="part_alone",
        message=f"this is a {kind} file, a part of a profile",
        hint=_use(kind, file),
    )


def _use(kind: Kind, file: File) -> str:
    """How a profile names it."""
    if file.path.is_relative_to(shipped_folder()):
        name = file.path.relative_to(shipped_folder()).as_posix().removesuffix(SUFFIX)
        return f"in a profile write `{kind}: {SHIPPED}{name}`"
    return f"in a profile beside it write `{kind}: {literal(file.path.name)}`"
