"""The one fault of this room: a checkpoint that is not what the plan was made for."""

from firmtoken.runtime.hinted_fault import HintedFault
from firmtoken.schema.diagnostic import printable

MAX_FOUND = 400
"""Letters of what was found that a sentence repeats: a file may say anything, and as much as it likes."""


class LoadError(HintedFault):
    """A file or tensor that is missing, broken, or not as expected; one sentence and a remedy."""

    def __init__(
        self, *, file: str, expected: str, found: str, hint: str, tensor: str = "", more: int = 0
    ) -> None:
        where = f"`{tensor}` in `{file}`" if tensor else f"`{file}`"
        others = f" (and {more} more)" if more else ""
        shown = found if len(found) <= MAX_FOUND else f"{found[:MAX_FOUND]}..."
        super().__init__(printable(f"{where}: expected {expected}, found {shown}{others}"), hint)
        self.file = file
        self.tensor = tensor
        self.expected = expected
        self.found = found
        self.more = more
        """How many other tensors have a fault of this kind."""
