"""`ft profile model`: the model part of a profile from a checkpoint's folder, or from its config files alone."""

from pathlib import Path

from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.output import put, yaml_text
from firmtoken.runtime.exit_codes import WRONG
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.model_config import read_model

HEAD = "# Made by `ft profile model` from the checkpoint's config files; no tensor was looked at.\n"


def make_model_profile(folder: str, *, output: str | None) -> int:
    """Print or write it; the exit code."""
    path = Path(folder).resolve()
    try:
        data = read_model(path, name=path.name, source={"path": str(path)})
    except LoadError as error:
        raise Failure(f"{folder}: {error}", exit_code=WRONG, hint=error.hint) from error
    put(HEAD + yaml_text(data), output)
    return 0
