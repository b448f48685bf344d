"""What a command prints, to standard output or to the file that was asked for."""

import io
import sys
from pathlib import Path

from ruamel.yaml import YAML

from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.exit_codes import FAILED


def put(text: str, output: str | None) -> None:
    """Print it, or write it to the file `output`."""
    if output is None:
        sys.stdout.write(text)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"cannot write `{output}`: {error.strerror}", exit_code=FAILED) from error


def yaml_text(data: object) -> str:
    """Block style, in the order of `data`."""
    written = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel types its default as None
    yaml.dump(data, written)
    return written.getvalue()
