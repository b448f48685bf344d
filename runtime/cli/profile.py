"""`ft profile model`: the model part of a profile from a checkpoint's folder, or from its config files alone."""

import io
import sys
from pathlib import Path

from ruamel.yaml import YAML

from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.exit_codes import FAILED, WRONG
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.model_config import read_model

HEAD = "# Made by `ft profile model` from the checkpoint's config files; no tensor was looked at.\n"


def make_model_profile(folder: str, *, output: str | None) -> int:
    """Print or write it; the exit code."""
    path = Path(folder).resolve()
    try:
        data = read_model(path, name=path.name, source=str(path))
    except LoadError as error:
        raise Failure(f"{folder}: {error}", exit_code=WRONG, hint=error.hint) from error
    text = HEAD + yaml_text(data)
    if output is None:
        sys.stdout.write(text)
        return 0
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"cannot write `{output}`: {error.strerror}", exit_code=FAILED) from error
    return 0


def yaml_text(data: dict[str, object]) -> str:
    """Block style, in the order of `data`."""
    written = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel types its default as None
    yaml.dump(data, written)
    return written.getvalue()
