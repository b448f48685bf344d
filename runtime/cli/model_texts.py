"""Where a plan's tokenizer, chat template and defaults are: in its checkpoint, or made with its synthetic weights."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from firmtoken.compiler.plan import Plan
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.exit_codes import FAILED, WRONG
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.planned_model import is_synthetic, planned_model, source_folder
from firmtoken.runtime.weights.synthetic_text import text_files


@contextmanager
def model_texts(plan: Plan) -> Iterator[Path]:
    """The folder, for as long as the block runs; raises `Failure`."""
    if is_synthetic(plan):
        with TemporaryDirectory(prefix="ft-synthetic-") as made:
            _write_texts(plan, Path(made))
            yield Path(made)
        return
    folder = source_folder(plan)
    if folder is None:
        raise Failure(
            f"`model.source`: the checkpoint of `{plan.model.name}` is not in a folder",
            exit_code=FAILED,
            hint="fetch it and name the folder: `model.source: {path: ...}`",
        )
    yield folder


def _write_texts(plan: Plan, folder: Path) -> None:
    try:
        for name, text in text_files(planned_model(plan.model)).items():
            (folder / name).write_text(text, encoding="utf-8")
    except LoadError as error:
        raise Failure(str(error), exit_code=WRONG, hint=error.hint) from error
    except OSError as error:
        raise Failure(
            f"cannot write `{folder}`: {error.strerror}",
            exit_code=FAILED,
            hint="the synthetic tokenizer is written to the folder for temporary files",
        ) from error
