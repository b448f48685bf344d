"""What a checkpoint's quantisation files say: the number format of each part (facts/models.md 3.7)."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import translate

from firmtoken.compiler.family import CheckpointPart
from firmtoken.runtime.weights.errors import LoadError

CONFIG = "config.json"
SEPARATE = "hf_quant_config.json"
FORMATS = {"NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "FP8": "fp8"}
"""By ModelOpt's algorithm. W4A4 weights are the same bytes: `input_scale` is left out."""
MIXED = "MIXED_PRECISION"
EXPORT = "use a ModelOpt export in NVFP4 or FP8, or the release in bf16"
WRAPPED = ("model.", "model.language_model.")
"""The logical prefix, and what it is called where a vision model wraps the text model."""

Json = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One statement of what is quantised."""

    file: str
    algorithm: str
    """ModelOpt's word; empty: nothing is quantised."""
    excluded: re.Pattern[str]
    """Matches the names of modules that are not."""
    listed: Mapping[str, str]
    """Module -> algorithm; what is not there is not quantised, if the algorithm is mixed."""


def declared(config: Json, separate: Json | None) -> Declared:
    """The separate file counts where there is one: old exports write nothing else."""
    if separate is not None:
        found = _mapping(separate.get("quantization", {}), SEPARATE)
        return _declared(SEPARATE, found, excluded="exclude_modules")
    found = _mapping(config.get("quantization_config") or {}, CONFIG)
    method = found.get("quant_method", "modelopt")
    if method != "modelopt":
        raise _unknown(CONFIG, f"`quant_method: {method}`")
    return _declared(CONFIG, found, excluded="ignore")


def part_format(part: CheckpointPart, layers: Iterable[int], stated: Declared, plain: str) -> str:
    """The one format of all modules of a part; `plain` is what is not quantised. Raises `LoadError` for a mixture."""
    found: dict[str, str] = {}
    for layer in layers:
        for module in part.modules:
            name = module.replace("{l}", str(layer))
            found.setdefault(_format(name, stated, plain), name)
    if len(found) > 1:
        each = " and ".join(f"{name} for `{module}`" for name, module in found.items())
        raise LoadError(
            file=stated.file,
            expected=f"one format for all of `quantization.{part.field}`",
            found=each,
            hint=EXPORT,
        )
    return next(iter(found))


def kv_format(config: Json, separate: Json | None) -> str | None:
    """What is declared for keys and values; either file may be the only one that says it."""
    inside = _mapping(config.get("quantization_config") or {}, CONFIG)
    match inside.get("kv_cache_scheme"):
        case None:
            own = None
        case {"num_bits": 8, "type": "float"}:
            own = "FP8"
        case other:
            raise _unknown(CONFIG, f"`kv_cache_scheme: {other}`")
    outside = _mapping((separate or {}).get("quantization", {}), SEPARATE)
    algorithm = outside.get("kv_cache_quant_algo") or own
    if algorithm is None:
        return None
    if algorithm != "FP8":
        raise _unknown(SEPARATE, f"`kv_cache_quant_algo: {algorithm}`")
    return "fp8"


def _declared(file: str, found: Json, *, excluded: str) -> Declared:
    algorithm = found.get("quant_algo") or ""
    if algorithm not in ("", MIXED, *FORMATS):
        raise _unknown(file, f"`quant_algo: {algorithm}`")
    if found and not algorithm:
        raise _unknown(file, "no `quant_algo`")
    layers = _mapping(found.get("quantized_layers") or {}, file)
    return Declared(
        file=file,
        algorithm=str(algorithm),
        excluded=_patterns(_strings(found.get(excluded) or [], file)),
        listed={name: str(_mapping(row, file).get("quant_algo")) for name, row in layers.items()},
    )


def _format(module: str, stated: Declared, plain: str) -> str:
    names = tuple(_spellings(module))
    if stated.algorithm == MIXED:
        algorithm = next((stated.listed[name] for name in names if name in stated.listed), None)
        if algorithm is None:
            return plain
        if algorithm not in FORMATS:
            raise _unknown(stated.file, f"`quant_algo: {algorithm}` of `{module}`")
        return FORMATS[algorithm]
    if not stated.algorithm:
        return plain
    is_excluded = any(stated.excluded.match(name) for name in names)
    return plain if is_excluded else FORMATS[stated.algorithm]


def _patterns(shell: Iterable[str]) -> re.Pattern[str]:
    """One expression for all of these shell-style patterns: there is one for each layer and more."""
    return re.compile("|".join(map(translate, shell)) or r"(?!)")


def _spellings(module: str) -> Iterator[str]:
    """The module and what it lies in, innermost first, with either prefix."""
    logical, wrapped = WRAPPED
    while module:
        yield module
        if module.startswith(logical):
            yield wrapped + module.removeprefix(logical)
        module = module.rpartition(".")[0]


def _mapping(value: object, file: str) -> Json:
    if isinstance(value, Mapping):
        return value
    raise _unknown(file, f"{type(value).__name__} where an object belongs")


def _strings(value: object, file: str) -> list[str]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    raise _unknown(file, "something else where a list of names belongs")


def _unknown(file: str, found: str) -> LoadError:
    return LoadError(
        file=file, expected="ModelOpt's NVFP4, FP8 or mixed precision", found=found, hint=EXPORT
    )
