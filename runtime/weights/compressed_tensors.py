"""compressed-tensors' declaration: groups of modules with a scheme each, and modules that none takes."""

import re
from collections.abc import Callable

from firmtoken.runtime.weights.declared import (
    CONFIG,
    Declared,
    Json,
    both_prefixes,
    mapping,
    strings,
    unknown,
)

Matches = Callable[[str], bool]
ALL_LINEAR = "Linear"
"""The class of every matrix that may be quantised, as a target."""
EXPRESSION = "re:"
NVFP4 = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}
FP8 = {"num_bits": 8, "type": "float", "strategy": "tensor"}
SCHEMES = (("nvfp4", NVFP4), ("fp8", FP8))
"""What `weights` of a group says for each format that is read here: one FP8 scale for a whole matrix, no blocks."""


def declared_by_compressed_tensors(found: Json) -> Declared:
    """From `quantization_config` of the config."""
    ignored = [_matches(name) for name in strings(found.get("ignore") or [], CONFIG)]
    named: list[tuple[Matches, str]] = []
    common: str | None = None
    for name, row in mapping(found.get("config_groups") or {}, CONFIG).items():
        group = mapping(row, CONFIG)
        format_name = _scheme(name, mapping(group.get("weights") or {}, CONFIG))
        for target in strings(group.get("targets") or [], CONFIG):
            if target == ALL_LINEAR:
                common = format_name
            else:
                named.append((_matches(target), format_name))

    def format_of(module: str) -> str | None:
        if any(matches(module) for matches in ignored):
            return None
        # A target by name counts before one by class.
        return next((format_name for matches, format_name in named if matches(module)), common)

    return Declared(file=CONFIG, format_of=format_of)


def _scheme(group: str, weights: Json) -> str:
    for format_name, scheme in SCHEMES:
        if all(weights.get(key) == value for key, value in scheme.items()):
            return format_name
    said = ", ".join(f"{key} {weights.get(key)}" for key in NVFP4)
    raise unknown(CONFIG, f"`config_groups.{group}.weights` with {said}")


def _matches(name: str) -> Matches:
    """A module's whole name, or an expression that its name begins with."""
    if not name.startswith(EXPRESSION):
        return lambda module: name in both_prefixes(module)
    try:
        pattern = re.compile(name.removeprefix(EXPRESSION))
    except re.error as error:
        raise unknown(CONFIG, f"`{name}`, which is no expression: {error}") from error
    return lambda module: any(pattern.match(spelled) for spelled in both_prefixes(module))
