"""`ft plan --timeline`: the picture of a decode step and a prefill span in a file, and in words on the terminal."""

import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from firmtoken.compiler.timeline import timelines
from firmtoken.compiler.timeline_svg import draw
from firmtoken.compiler.timeline_text import summary
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.exit_codes import FAILED, WRONG

ONLY_WORDS = "-"
SUFFIX = ".svg"


def show_timeline(argument: str, overrides: Sequence[str], target: str) -> int:
    """Print the summary; `target` is a file for the picture, or `-` for none. The exit code.

    The file's name must end in `.svg`: a file that is there is replaced, so a profile named by mistake must not be.
    """
    if target != ONLY_WORDS and not target.lower().endswith(SUFFIX):
        raise Failure(
            f"`--timeline` writes a picture in SVG, `{target}` is named otherwise",
            exit_code=WRONG,
            hint="`--timeline timeline.svg` draws it, `--timeline -` prints the words alone",
        )
    compiled = compile_argument(argument, overrides)
    found = timelines(compiled.loaded.profile, compiled.plan)
    if target != ONLY_WORDS:
        _replace(Path(target), draw(compiled.plan.profile.name, found))
    sys.stdout.write(summary(found))
    if target != ONLY_WORDS:
        sys.stdout.write(f"\nwrote {target}\n")
    return 0


def _replace(path: Path, text: str) -> None:
    """Write the file whole or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise Failure(f"cannot write `{path}`: {error.strerror}", exit_code=FAILED) from error
