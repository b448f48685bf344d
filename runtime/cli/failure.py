"""How a command ends when it cannot do what it was asked: a sentence, a hint, an exit code (D10)."""

import contextlib
import sys


class Failure(Exception):
    """Ends a command; the text is ready for people."""

    def __init__(self, text: str, *, exit_code: int, hint: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.hint = hint
        self.exit_code = exit_code


def tell(failure: Failure) -> None:
    """Print it to stderr."""
    say(failure.text, failure.hint)


def say(text: str, hint: str | None) -> None:
    """A sentence and its hint to stderr; where that is closed or full, nobody hears it and nothing else fails."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr)
        if hint is not None:
            print(f"  hint: {hint}", file=sys.stderr)
        sys.stderr.flush()
