"""The root of all faults here that a person can mend: a sentence, and a hint that says how."""


class HintedFault(Exception):
    """Its text and its hint are ready for people."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint
