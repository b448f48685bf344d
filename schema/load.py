"""An argument of the command line -> a checked profile that remembers where each value was written."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from firmtoken.schema.assembly import Assembly
from firmtoken.schema.diagnostic import (
    SET,
    Diagnostic,
    Fault,
    Place,
    ProfileError,
    diagnose,
)
from firmtoken.schema.merge import merge
from firmtoken.schema.overrides import command_line, read_override
from firmtoken.schema.part_files import alone, part_alone
from firmtoken.schema.profile import Profile
from firmtoken.schema.references import argument_file
from firmtoken.schema.tree import MapNode, Step, value_place, written
from firmtoken.schema.validation import validate


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedProfile:
    """A profile and its sources."""

    profile: Profile
    name: str
    """Of the file, as people are told of it: `profiles/x.yaml`, or `ft:x` for a shipped one."""
    path: Path
    """The file, links resolved."""
    tree: MapNode
    """Everything that was written, merged."""

    def place(self, field: str) -> Place:
        """Where the value of `field` was written, or the nearest section that was."""
        return value_place(self.tree, steps_of(field, self.tree))

    def locate(self, field: str) -> tuple[str, int, int]:
        """File, line and column of `place`; the file is `--set` for a value given there."""
        place = self.place(field)
        return place.file, place.line, place.column

    def origin(self, field: str) -> str:
        """`FILE:LINE:COLUMN`, `--set`, or `default`."""
        is_written = written(self.tree, steps_of(field, self.tree))
        return str(self.place(field)) if is_written else "default"

    def refuse(
        self, field: str, message: str, hint: str | None = None, code: str = "refused"
    ) -> Diagnostic:
        """A fault of `field` that was found later, at the place where it was written."""
        return diagnose(Fault(code=code, message=message, hint=hint), self.place(field), field)


def load_profile(argument: str, overrides: Sequence[str] = ()) -> LoadedProfile:
    """The profile that `argument` means, with `--set` values; a `ProfileError` with every fault."""
    file = argument_file(argument)
    if isinstance(file, Fault):
        raise ProfileError([diagnose(file, Place(file="", line=1, column=1), "")])
    assembly = Assembly()
    tree = assembly.document(file, "", ())
    if part := part_alone(tree):
        raise ProfileError([diagnose(alone(part, file), tree.place, "")])
    for ordinal, text in enumerate(overrides, start=1):
        over = read_override(text, ordinal)
        if isinstance(over, Diagnostic):
            assembly.faults.append(over)
        else:
            tree = merge(tree, assembly.settle(over, command_line(), "", ()))
    checked = validate(tree, assembly.broken)
    if isinstance(checked, Profile) and not assembly.faults:
        return LoadedProfile(profile=checked, name=file.shown, path=file.path, tree=tree)
    found = [*assembly.faults, *(() if isinstance(checked, Profile) else checked)]
    raise ProfileError(in_reading_order(found, file.shown))


def in_reading_order(found: Sequence[Diagnostic], top: str) -> list[Diagnostic]:
    """The top file first, then the others, `--set` last; each from top to bottom."""
    return sorted(
        found,
        key=lambda each: (each.file == SET, each.file != top, each.file, each.line, each.column),
    )


def steps_of(field: str, tree: MapNode) -> tuple[Step, ...]:
    """`kernels.gdn.decode` -> its steps; a key with a dot in it is found as it was written."""
    names = field.split(".")
    for end in range(len(names), 1, -1):
        key = ".".join(names[1:end])
        if names[0] == "kernels" and written(tree, ("kernels", key)):
            return ("kernels", key, *names[end:])
    return tuple(names)
