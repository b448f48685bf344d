"""How a command ends when it cannot do what it was asked: a sentence, a hint, an exit code (D10)."""

import sys

FAILED = 1
"""Failed while running: busy port, broken or missing checkpoint, disk."""
WRONG = 2
"""The profile or the command line is wrong."""
REFUSED = 3
"""Does not fit, or this machine lacks what the plan needs."""
INTERRUPTED = 130


class Failure(Exception):
    """Ends a command; the text is ready for people."""

    def __init__(self, text: str, *, exit_code: int, hint: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint
        self.exit_code = exit_code


def tell(failure: Failure) -> None:
    """Print it to stderr."""
    print(failure.text, file=sys.stderr)
    if failure.hint is not None:
        print(f"  hint: {failure.hint}", file=sys.stderr)
