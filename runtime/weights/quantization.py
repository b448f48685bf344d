"""What a checkpoint's quantisation files say: the number format of each part (facts/models.md 3.7)."""

from collections.abc import Iterable

from firmtoken.compiler.family import CheckpointPart
from firmtoken.runtime.weights.compressed_tensors import declared_by_compressed_tensors
from firmtoken.runtime.weights.declared import (
    CONFIG,
    EXPORT,
    SEPARATE,
    Declared,
    Json,
    mapping,
    unknown,
)
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.modelopt import declared_by_modelopt


def declared(config: Json, separate: Json | None) -> Declared:
    """The separate file counts where there is one: old exports write nothing else."""
    if separate is not None:
        found = mapping(separate.get("quantization", {}), SEPARATE)
        return declared_by_modelopt(SEPARATE, found, excluded="exclude_modules")
    found = mapping(config.get("quantization_config") or {}, CONFIG)
    method = found.get("quant_method", "modelopt")
    if method == "compressed-tensors":
        return declared_by_compressed_tensors(found)
    if method != "modelopt":
        raise unknown(CONFIG, f"`quant_method: {method}`")
    return declared_by_modelopt(CONFIG, found, excluded="ignore")


def part_format(part: CheckpointPart, layers: Iterable[int], stated: Declared, plain: str) -> str:
    """The one format of all modules of a part; `plain` is what is not quantised. Raises `LoadError` for a mixture."""
    found: dict[str, str] = {}
    for layer in layers:
        for module in part.modules:
            name = module.replace("{l}", str(layer))
            found.setdefault(stated.format_of(name) or plain, name)
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
    inside = mapping(config.get("quantization_config") or {}, CONFIG)
    match inside.get("kv_cache_scheme"):
        case None:
            own = None
        case {"num_bits": 8, "type": "float"}:
            own = "FP8"
        case other:
            raise unknown(CONFIG, f"`kv_cache_scheme: {other}`")
    outside = mapping((separate or {}).get("quantization", {}), SEPARATE)
    algorithm = outside.get("kv_cache_quant_algo") or own
    if algorithm is None:
        return None
    if algorithm != "FP8":
        raise unknown(SEPARATE, f"`kv_cache_quant_algo: {algorithm}`")
    return "fp8"
