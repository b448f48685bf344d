"""What a config file of a checkpoint declares about number formats, whoever wrote it; and how such JSON is read."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from firmtoken.runtime.weights.errors import LoadError

CONFIG = "config.json"
SEPARATE = "hf_quant_config.json"
EXPORT = (
    "use an export of ModelOpt in NVFP4 or FP8, one of compressed-tensors in NVFP4, "
    "or the release in bf16"
)
WRAPPED = ("model.", "model.language_model.")
"""The logical prefix, and what it is called where a vision model wraps the text model."""

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One statement of what is quantised."""

    file: str
    format_of: Callable[[str], str | None]
    """Format of a module by its logical name; None: it is not quantised. Raises `LoadError` for one unknown here."""


def spellings(module: str) -> Iterator[str]:
    """The module and what it lies in, innermost first, with either prefix."""
    while module:
        yield from both_prefixes(module)
        module = module.rpartition(".")[0]


def both_prefixes(module: str) -> tuple[str, ...]:
    """A logical name as each kind of checkpoint spells it."""
    logical, wrapped = WRAPPED
    if module.startswith(logical):
        return module, wrapped + module.removeprefix(logical)
    return (module,)


def mapping(value: object, file: str) -> Json:
    """A JSON object; raises `LoadError`."""
    if isinstance(value, Mapping):
        return value
    raise unknown(file, f"{type(value).__name__} where an object belongs")


def strings(value: object, file: str) -> list[str]:
    """A list of names; raises `LoadError`."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise unknown(file, "something else where a list of names belongs")


def unknown(file: str, found: str) -> LoadError:
    """A declaration that nothing here reads."""
    return LoadError(
        file=file,
        expected="NVFP4, FP8 or mixed precision of ModelOpt, or NVFP4 of compressed-tensors",
        found=found,
        hint=EXPORT,
    )
