"""The one fault of this room: a checkpoint that is not what the plan was made for."""


class LoadError(Exception):
    """A file or tensor that is missing, broken, or not as expected; one sentence and a remedy."""

    def __init__(
        self, *, file: str, expected: str, found: str, hint: str, tensor: str = "", more: int = 0
    ) -> None:
        where = f"`{tensor}` in `{file}`" if tensor else f"`{file}`"
        others = f" (and {more} more)" if more else ""
        super().__init__(printable(f"{where}: expected {expected}, found {found}{others}"))
        self.file = file
        self.tensor = tensor
        self.expected = expected
        self.found = found
        self.hint = hint
        self.more = more
        """How many other tensors have a fault of this kind."""


def printable(text: str) -> str:
    """Names come from files: whatever cannot be shown, or not be encoded, is escaped."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
