"""Which file an argument or a reference means, and whether it may be read."""

import os
from dataclasses import dataclass
from pathlib import Path

import firmtoken.profiles
from firmtoken.schema.diagnostic import SET, Fault, did_you_mean, listing, literal
from firmtoken.schema.regular_file import read_regular
from firmtoken.schema.source import MAX_BYTES

SHIPPED = "ft:"
SUFFIX = ".yaml"
SHELVES = (".", "hardware", "models")
"""Folders of the shipped files that may be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A YAML file that may be read."""

    path: Path
    """Links resolved."""
    shown: str
    """As people are told of it: as they wrote it, or `ft:NAME`."""
    folder: Path
    """What the files it refers to may not leave (the shipped ones are always allowed)."""


def shipped_folder() -> Path:
    return Path(firmtoken.profiles.__path__[0]).resolve()


def shipped_names() -> tuple[str, ...]:
    """Names of all shipped files, without `ft:` and without suffix."""
    folder = shipped_folder()
    found = (path for place in SHELVES for path in (folder / place).glob(f"*{SUFFIX}"))
    return tuple(path.relative_to(folder).as_posix().removesuffix(SUFFIX) for path in sorted(found))


def shipped_profiles() -> tuple[str, ...]:
    """Those that stand on their own: parts of a profile lie in folders."""
    return tuple(name for name in shipped_names() if "/" not in name)


def argument_file(argument: str) -> File | Fault:
    """A path if it has a separator or a suffix, else the name of a shipped profile."""
    if argument.startswith(SHIPPED):
        return shipped_file(argument, near=shipped_profiles())
    if os.sep in argument or Path(argument).suffix or argument in (os.curdir, os.pardir):
        shipped = listing(SHIPPED + name for name in shipped_profiles())
        lost = f"check the path, or take a shipped profile: {shipped}"
        return outer_file(Path(argument), argument, lost=lost)
    found = shipped_file(SHIPPED + argument, near=shipped_profiles())
    if isinstance(found, Fault) and Path(f"{argument}{SUFFIX}").is_file():
        return Fault(
            code=found.code, message=found.message, hint=f"did you mean `./{argument}{SUFFIX}`?"
        )
    return found


def outer_file(
    path: Path, shown: str, *, lost: str = "check the path: it starts at this folder"
) -> File | Fault:
    """A file that the command line names: it may lie anywhere, and its folder bounds the rest."""
    found = regular_file(path, shown=shown, written=shown, lost=lost)
    return found if isinstance(found, Fault) else File(path=found, shown=shown, folder=found.parent)


def shipped_file(reference: str, *, near: tuple[str, ...]) -> File | Fault:
    """The shipped file of that name; a hint names only what is in `near`."""
    folder = shipped_folder()
    name = reference.removeprefix(SHIPPED).removesuffix(SUFFIX)
    if name in shipped_names():
        path = (folder / f"{name}{SUFFIX}").resolve()
        return File(path=path, shown=f"{SHIPPED}{name}", folder=folder)
    return Fault(
        code="no_file",
        message=f"there is no shipped file `{SHIPPED}{literal(name)}`",
        hint=near_shipped(name, near),
    )


def near_shipped(name: str, names: tuple[str, ...]) -> str:
    begun = [each for each in names if each.startswith(f"{name}-")]
    if len(begun) > 1:
        return f"shipped are {listing(SHIPPED + each for each in begun)}"
    near = did_you_mean(name, names) or did_you_mean(name, [each.split("/")[-1] for each in names])
    if near is None:
        return f"shipped are {listing(SHIPPED + each for each in names)}"
    word = near.split("`")[1]
    return f"did you mean `{SHIPPED}{next(each for each in names if each.endswith(word))}`?"


def referenced_file(reference: str, base: File) -> File | Fault:
    """The file that `reference`, written in `base`, means."""
    if reference.startswith(SHIPPED):
        return shipped_file(reference, near=shipped_names())
    if base.shown == SET:
        return outer_file(base.path.parent / reference, reference)
    shown = beside(reference, base)
    lost = "check the path: one that is written in a file starts at that file"
    path = regular_file(base.path.parent / reference, shown=shown, written=reference, lost=lost)
    if isinstance(path, Fault):
        return path
    if not path.is_relative_to(base.folder) and not path.is_relative_to(shipped_folder()):
        return Fault(
            code="outside",
            message=f"`{literal(reference)}` lies outside `{literal(base.folder)}`",
            hint="a profile refers to files of its own folder and to shipped ones (`ft:...`)",
        )
    return File(path=path, shown=shown, folder=base.folder)


def beside(reference: str, base: File) -> str:
    """How a file is shown that is named relative to `base`."""
    if not base.shown.startswith(SHIPPED):
        return os.path.normpath(Path(base.shown).parent / reference)
    name = os.path.normpath(Path(base.shown.removeprefix(SHIPPED)).parent / reference)
    return SHIPPED + name.removesuffix(SUFFIX)


def regular_file(path: Path, *, shown: str, written: str, lost: str) -> Path | Fault:
    """The file at `path` with links resolved; a hint can stand where `written` stands, `lost` if none is near."""
    try:
        resolved = path.resolve(strict=True)
    except (OSError, ValueError, RuntimeError):  # missing, a NUL in the name, a loop of links
        return Fault(
            code="no_file",
            message=f"there is no file `{literal(shown)}`",
            hint=near_file(path, written) or lost,
        )
    if not resolved.is_file():
        return Fault(
            code="no_file",
            message=f"`{literal(shown)}` is not a regular file",
            hint=f"name a `{SUFFIX}` file",
        )
    return resolved


def near_file(path: Path, written: str) -> str:
    """A file of that folder with nearly that name, or a shipped one; empty if there is none."""
    stem = path.name.removesuffix(SUFFIX)
    try:
        beside_it = sorted(each.stem for each in path.parent.iterdir() if each.suffix == SUFFIX)
    except (OSError, ValueError):
        beside_it = []
    if stem not in beside_it:
        shipped = [name for name in shipped_names() if name.split("/")[-1] == stem]
        if shipped:
            return f"did you mean `{SHIPPED}{shipped[0]}`?"
    near = did_you_mean(stem, beside_it)
    if near:
        name = near.split("`")[1] + SUFFIX
        return f"did you mean `{literal(Path(written).parent / name)}`?"
    return ""


def read_bytes(file: File) -> bytes | Fault:
    """The content; one byte more than is allowed, if there is more."""
    try:
        return read_regular(file.path, MAX_BYTES + 1)
    except OSError as error:
        return Fault(
            code="unreadable",
            message=f"`{literal(file.shown)}` cannot be read: {error.strerror or 'unknown reason'}",
            hint="check its permissions",
        )
