"""All dialects, by the name a model's facts give."""

from firmtoken.runtime.dialects.dialect import Dialect
from firmtoken.runtime.dialects.qwen3_5 import Qwen3_5

DIALECTS: tuple[type[Dialect], ...] = (Qwen3_5,)


class UnknownDialect(LookupError):
    """A model's facts name a dialect that has no file here."""


def find_dialect(name: str) -> type[Dialect]:
    """The dialect of that name."""
    for dialect in DIALECTS:
        if dialect.name == name:
            return dialect
    known = ", ".join(f"`{dialect.name}`" for dialect in DIALECTS)
    raise UnknownDialect(f"unknown dialect `{name}`: known are {known}")
