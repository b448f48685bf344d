"""Commands that need more than the planner: what is missing is said in a sentence, not as an import's traceback."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec

from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.exit_codes import REFUSED

SERVING = ("uvicorn", "litestar", "jinja2", "tokenizers", "torch", "numpy")
"""What the processes of a command that serves import: said here, before it would be a stack of one of them."""


@contextmanager
def needed(command: str, *, extra: str, packages: Sequence[str] = ()) -> Iterator[None]:
    """For the imports of `command`, and `packages` besides: the base install is the planner alone."""
    try:
        yield
        for name in packages:
            if find_spec(name) is None:
                raise ModuleNotFoundError(name=name)
    except ModuleNotFoundError as error:
        package = (error.name or "firmtoken").partition(".")[0]
        if package == "firmtoken":
            raise
        what = "the serving packages" if extra == "run" else f"the packages of `{extra}`"
        raise Failure(
            f"`ft {command}` needs {what}, `{package}` is missing",
            exit_code=REFUSED,
            hint=f'`pip install "firmtoken[{extra}]"`, or `pip install -e ".[{extra}]"` in a clone',
        ) from error
    except ValueError as error:
        if extra != "hub":
            raise
        # huggingface_hub reads its variables when it is imported, and raises what `int` does.
        raise Failure(
            f"`ft {command}`: a variable of `huggingface_hub` has a value that it cannot read: {error}",
            exit_code=REFUSED,
            hint="set right or unset the variables that begin with `HF_`",
        ) from error
