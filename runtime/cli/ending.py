"""How a command of the console ends: with its exit code, a told failure, or a signal's 130 or 143 (D10)."""

import functools
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn, ParamSpec

from firmtoken.runtime.cli.failure import Failure, say, tell
from firmtoken.runtime.cli.standard_output import Unheard, open_outputs, say_no_more
from firmtoken.runtime.exit_codes import FAILED, INTERRUPTED, TERMINATED

P = ParamSpec("P")


class Terminated(BaseException):
    """SIGTERM came before the server listens for it."""


def run_console(console: Callable[[], object]) -> None:
    """Run it; it leaves by an exit code, also when Ctrl-C or SIGTERM comes before a command has begun."""
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, _on_term)
        open_outputs()
        console()
    except Unheard as error:
        say(f"cannot write to standard output: {error.strerror}", None)
        say_no_more()
        sys.exit(FAILED)
    except (KeyboardInterrupt, Terminated) as ended:
        sys.exit(_told(ended))


def answering(command: Callable[P, int]) -> Callable[P, NoReturn]:
    """Leave with the command's exit code, told failures with theirs, and Ctrl-C with 130 in any phase."""

    @functools.wraps(command)
    def answer(*arguments: P.args, **options: P.kwargs) -> NoReturn:
        try:
            code = command(*arguments, **options)
            sys.stdout.flush()  # a fault is told here, not by Python at its end
        except Failure as failure:
            tell(failure)
            code = failure.exit_code
        except (KeyboardInterrupt, Terminated) as ended:
            code = _told(ended)
        sys.exit(code)

    return answer


def _on_term(_signum: int, _frame: FrameType | None) -> None:
    raise Terminated


def _told(ended: BaseException) -> int:
    """Say what a signal did; its exit code."""
    by_term = isinstance(ended, Terminated)
    print("terminated" if by_term else "interrupted", file=sys.stderr)
    return TERMINATED if by_term else INTERRUPTED
