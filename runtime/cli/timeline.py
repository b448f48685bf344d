"""`ft plan --timeline`: the picture of a decode step and a prefill span in a file, and in words on the terminal."""

from collections.abc import Callable, Sequence

from firmtoken.compiler.plan import Plan
from firmtoken.compiler.timeline import timelines
from firmtoken.compiler.timeline_svg import draw
from firmtoken.compiler.timeline_text import summary
from firmtoken.runtime.cli.compiled import compile_argument
from firmtoken.runtime.cli.failure import Failure
from firmtoken.runtime.cli.output import put
from firmtoken.runtime.exit_codes import WRONG

ONLY_WORDS = "-"
SUFFIX = ".svg"


def show_timeline(
    argument: str,
    overrides: Sequence[str],
    target: str,
    inspect: Callable[[Plan], None] | None = None,
) -> int:
    """Print the summary, once `inspect` has nothing against the plan; the exit code.

    `target` is a file for the picture, or `-` for none.
    The file's name must end in `.svg`: a file that is there is replaced, so a profile named by mistake must not be.
    """
    if target != ONLY_WORDS and not target.lower().endswith(SUFFIX):
        raise Failure(
            f"`--timeline` writes a picture in SVG, `{target}` is named otherwise",
            exit_code=WRONG,
            hint="`--timeline timeline.svg` draws it, `--timeline -` prints the words alone",
        )
    compiled = compile_argument(argument, overrides)
    if inspect is not None:
        inspect(compiled.plan)
    found = timelines(compiled.loaded.profile, compiled.plan)
    if target != ONLY_WORDS:
        put(draw(compiled.plan.profile.name, found), target)
    put(summary(found), None)
    if target != ONLY_WORDS:
        put(f"\nwrote {target}\n", None)
    return 0
