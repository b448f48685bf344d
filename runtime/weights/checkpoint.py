"""A checkpoint folder by its headers: which tensor lies in which file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.files import MAX_SHOWN, parse_json, unreadable
from firmtoken.runtime.weights.header import TensorHeader, read_header
from firmtoken.schema.regular_file import read_regular

INDEX = "model.safetensors.index.json"
MADE_UP = "synthetic"
"""In the metadata of an index: true where the weights are made up."""
SINGLE = "model.safetensors"
LOGICAL_PREFIX = "model."
WRAPPED_PREFIX = "model.language_model."
"""What the logical prefix is called where a vision model wraps the text model."""
COMPLETE = "copy or download the whole checkpoint"


class Maker(Protocol):
    """Makes the bytes of tensors that no file holds."""

    def make(self, name: str, first: int, count: int) -> memoryview:
        """Bytes `first` to `first + count` of a tensor, whole numbers; the caller's own."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The tensors that the index names, or those of the only file. Stray files are ignored."""

    folder: Path
    tensors: Mapping[str, TensorHeader]
    prefix: str
    maker: Maker | None = None
    """Of synthetic weights: there is no folder then."""

    def physical(self, name: str) -> str:
        """A logical name (`model.layers...`, `lm_head...`) as this checkpoint spells it."""
        if name.startswith(LOGICAL_PREFIX):
            return self.prefix + name.removeprefix(LOGICAL_PREFIX)
        return name

    def find(self, name: str) -> TensorHeader | None:
        """The tensor of this logical name, if it is there."""
        return self.tensors.get(self.physical(name))


def open_checkpoint(folder: Path) -> Checkpoint:
    """Reads every header; raises `LoadError` for a folder that is incomplete or damaged."""
    if not folder.is_dir():
        raise LoadError(
            file=str(folder),
            expected="a checkpoint folder",
            found="no such folder",
            hint="`model.source.path` says where the checkpoint is",
        )
    return assemble(folder, weight_files(folder), lambda file: read_header(folder / file))


def assemble(
    folder: Path,
    files: Mapping[str, Sequence[str] | None],
    read: Callable[[str], Mapping[str, TensorHeader]],
) -> Checkpoint:
    """The checkpoint of these files, as `weight_files` gives them; `read` gives the header of one, wherever it is."""
    tensors = {}
    for file, names in files.items():
        headers = read(file)
        wanted = headers if names is None else names
        for name in wanted:
            if name not in headers:
                raise LoadError(
                    file=file,
                    tensor=name,
                    expected="the tensor that the index places there",
                    found="a header without it",
                    hint=COMPLETE,
                )
            tensors[name] = headers[name]
    wrapped = any(name.startswith(WRAPPED_PREFIX) for name in tensors)
    prefix = WRAPPED_PREFIX if wrapped else LOGICAL_PREFIX
    return Checkpoint(folder=folder, tensors=tensors, prefix=prefix)


def weight_files(folder: Path) -> dict[str, list[str] | None]:
    """File -> the tensors that count in it, as the index says; None is all: the only file, where there is no index."""
    index = folder / INDEX
    if not index.exists():
        if not (folder / SINGLE).exists():
            raise LoadError(
                file=str(folder),
                expected=f"`{INDEX}` or `{SINGLE}`",
                found="neither",
                hint="`model.source.path` must be the folder that holds the safetensors files",
            )
        return {SINGLE: None}
    return indexed_files(index)


def indexed_files(index: Path) -> dict[str, list[str] | None]:
    """File -> the tensors that the index places in it; raises `LoadError`."""
    files: dict[str, list[str] | None] = {}
    for name, file in _weight_map(index).items():
        names = files.setdefault(file, [])
        assert names is not None
        names.append(name)
    return files


def says_synthetic(folder: Path) -> bool:
    """Whether the index says of itself that the weights are made up, as `ft synth` writes it."""
    try:
        content = parse_json(read_regular(folder / INDEX))
    except (OSError, ValueError):
        return False  # a folder without an index, or one that says nothing
    match content:
        case {"metadata": {**metadata}}:
            return metadata.get(MADE_UP) is True
    return False


def _weight_map(index: Path) -> dict[str, str]:
    expected = "a JSON object with `weight_map`, tensor names to file names of this folder"
    try:
        content = parse_json(read_regular(index))
    except OSError as error:
        raise unreadable(index, error, COMPLETE) from error
    except ValueError as error:
        raise LoadError(
            file=index.name, expected=expected, found=str(error), hint=COMPLETE
        ) from error
    match content:
        case {"weight_map": {**weight_map}} if weight_map:
            strange = [file for file in weight_map.values() if not is_file_name(file)]
            if not strange:
                return {str(name): str(file) for name, file in weight_map.items()}
            found = f"`{str(strange[0])[:MAX_SHOWN]}`"
        case _:
            found = "something else"
    raise LoadError(file=index.name, expected=expected, found=found, hint=COMPLETE)


def is_file_name(file: object) -> bool:
    """Of this folder, and one that the system and a sentence can spell: no NUL, no lone surrogate."""
    return (
        isinstance(file, str)
        and file not in ("", ".", "..")
        and not {"/", "\\"} & set(file)
        and file.isprintable()
    )
