"""What a command prints, to standard output or to the file that was asked for."""

import io
import os
import sys
from pathlib import Path

from ruamel.yaml import YAML

from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.exit_codes import FAILED

YAML_SUFFIXES = (".yaml", ".yml")


def put(text: str, output: str | None) -> None:
    """Print it, or write it to the file `output`: whoever reads that file finds the old text or the new one, whole."""
    if output is None:
        sys.stdout.write(text)
        return
    try:
        _write(text, Path(output))
    except OSError as error:
        raise Failure(f"cannot write `{output}`: {error.strerror}", exit_code=FAILED) from error


def _write(text: str, path: Path) -> None:
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")  # a device or a pipe cannot be replaced
        return
    # A link stays one; `resolve` raises for one that leads to itself.
    path = Path(os.path.realpath(path))
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        new.write_text(text, encoding="utf-8")
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def yaml_text(data: object) -> str:
    """Block style, in the order of `data`."""
    written = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel types its default as None
    yaml.dump(data, written)
    return written.getvalue()
