"""ModelOpt's declaration: one algorithm and its exceptions, or a list of modules (facts/models.md 3.7)."""

import re
from collections.abc import Iterable
from fnmatch import translate

from firmtoken.runtime.weights.declared import (
    Declared,
    Json,
    mapping,
    spellings,
    strings,
    unknown,
)

FORMATS = {"NVFP4": "nvfp4", "W4A16_NVFP4": "nvfp4", "FP8": "fp8"}
"""By algorithm. W4A4 weights are the same bytes: `input_scale` is left out."""
MIXED = "MIXED_PRECISION"


def declared_by_modelopt(file: str, found: Json, *, excluded: str) -> Declared:
    """From `quantization` of its own file or `quantization_config` of the config; `excluded` is the key of exceptions.

    `config_groups` is not read: Qwen3.6's contradict `quantized_layers` of the same file (facts/models.md 3.3).
    """
    algorithm = found.get("quant_algo") or ""
    if algorithm not in ("", MIXED, *FORMATS):
        raise unknown(file, f"`quant_algo: {algorithm}`")
    if found and not algorithm:
        raise unknown(file, "no `quant_algo`")
    exceptions = _one_pattern(strings(found.get(excluded) or [], file))
    rows = mapping(found.get("quantized_layers") or {}, file)
    listed = {name: str(mapping(row, file).get("quant_algo")) for name, row in rows.items()}

    def listed_format(module: str) -> str | None:
        named = next((listed[name] for name in spellings(module) if name in listed), None)
        if named is not None and named not in FORMATS:
            raise unknown(file, f"`quant_algo: {named}` of `{module}`")
        return None if named is None else FORMATS[named]

    def common_format(module: str) -> str | None:
        is_excluded = any(exceptions.match(name) for name in spellings(module))
        return FORMATS.get(str(algorithm)) if not is_excluded else None

    return Declared(file=file, format_of=listed_format if algorithm == MIXED else common_format)


def _one_pattern(shell: Iterable[str]) -> re.Pattern[str]:
    """One expression for all of these shell-style patterns: there is one for each layer and more."""
    return re.compile("|".join(map(translate, shell)) or r"(?!)")
