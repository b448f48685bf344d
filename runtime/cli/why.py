"""`ft why`: the last time an engine stalled or died, in five lines."""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from firmtoken.runtime.cli.failure import Failure, say
from firmtoken.runtime.cli.report_text import five_lines
from firmtoken.runtime.exit_codes import FAILED
from firmtoken.runtime.server.report import Report, ends, read_report, reports_folder


def why(*, form: str, environ: Mapping[str, str]) -> int:
    """Print the newest report; 0 also when there is none."""
    try:
        folder = reports_folder(environ)
        found = _last(folder)
    except RuntimeError as error:  # no home
        raise Failure(f"there is no folder of reports: {error}", exit_code=FAILED) from error
    except OSError as error:
        raise Failure(
            f"cannot read `{error.filename}`: {error.strerror}", exit_code=FAILED
        ) from error
    if found is None:
        print("null" if form == "json" else f"no engine stalled or died, says `{folder}`")
        return 0
    place, report = found
    if form == "json":
        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        print(five_lines(report, place))
    return 0


def _last(folder: Path) -> tuple[Path, Report] | None:
    """The newest one that can be read; what was passed over is said."""
    for place in ends(folder):
        try:
            return place, read_report(place)
        except (OSError, msgspec.MsgspecError, RecursionError) as error:
            say(f"passed over `{place}`: {error}", None)
    return None
