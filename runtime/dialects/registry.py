"""All dialects, by the name a model's facts give."""

from firmtoken.runtime.dialects.dialect import Dialect
from firmtoken.runtime.dialects.minimax_m2 import MINIMAX_M2
from firmtoken.runtime.dialects.qwen3 import QWEN3
from firmtoken.runtime.dialects.qwen3_5 import QWEN3_5
from firmtoken.schema.diagnostic import did_you_mean, listing, literal

DIALECTS: tuple[Dialect, ...] = (QWEN3_5, QWEN3, MINIMAX_M2)


class UnknownDialect(LookupError):
    """A model's facts name a dialect that has no file here."""

    def __init__(self, name: str) -> None:
        known = [dialect.name for dialect in DIALECTS]
        super().__init__(f"unknown dialect `{literal(name)}`: known are {listing(known)}")
        self.hint = did_you_mean(name, known)


def find_dialect(name: str) -> Dialect:
    """The dialect of that name."""
    for dialect in DIALECTS:
        if dialect.name == name:
            return dialect
    raise UnknownDialect(name)
