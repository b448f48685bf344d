"""Reads the JSON files of a model's folder; every fault names the file and what is wrong with it."""

from pathlib import Path

import msgspec

from firmtoken.runtime.hinted_fault import HintedFault
from firmtoken.schema.regular_file import NotRegular, read_regular

MAX_FILE_BYTES = 256 * 2**20


class ModelFolderFault(HintedFault):
    """A file of the model's folder is missing or is not what it must be."""

    def __init__(self, path: Path, message: str, *, hint: str) -> None:
        super().__init__(f"{path}: {message}", hint)
        self.path = path


def read_json(path: Path) -> dict[str, object]:
    """The mapping in a JSON file."""
    try:
        data = msgspec.json.decode(read_bytes(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ModelFolderFault(
            path, f"not JSON: {error}", hint="download or copy the file again"
        ) from error
    if not isinstance(data, dict):
        raise ModelFolderFault(
            path, "expected a JSON mapping", hint="download or copy the file again"
        )
    return data


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFolderFault(
            path, "not UTF-8 text", hint="download or copy the file again"
        ) from error


def read_bytes(path: Path) -> bytes:
    """The bytes of a file of bounded size."""
    try:
        content = read_regular(path, MAX_FILE_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        hint = (
            "the folder needs tokenizer.json, tokenizer_config.json and generation_config.json"
            if path.parent.is_dir()
            else "check `model.source.path`, or fetch the checkpoint"
        )
        raise ModelFolderFault(path, "no such file", hint=hint) from error
    except NotRegular as error:
        raise ModelFolderFault(
            path, str(error.strerror), hint="copy the file itself there"
        ) from error
    except OSError as error:
        raise ModelFolderFault(
            path, f"cannot be read: {error.strerror}", hint="check its permissions"
        ) from error
    if len(content) > MAX_FILE_BYTES:
        raise ModelFolderFault(
            path, f"more than {MAX_FILE_BYTES} bytes", hint="is this the right file?"
        )
    return content
