"""Constants of a kernel that follow from the machine and the model: a card names the rule, the plan has the number."""

from collections.abc import Callable, Mapping

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.workspaces import Sizes, split_kv_parts

FP8_UNITS = (8, 9)
"""From here on a card converts e4m3 itself (PTX ISA, `cvt`)."""
EARLY_START = (9, 0)
"""From here on a launch may start before the one before it has ended (CUDA C++ Programming Guide, programmatic
dependent launch)."""
WIDE_EXPERT = 1024
"""Between the two widths that were measured, 512 and 1,536 (runtime/kernels/NOTES.md)."""


def _fp8_units(sizes: Sizes) -> int:
    return int(sizes.capability >= FP8_UNITS)


def _early_start(sizes: Sizes) -> int:
    return int(sizes.capability >= EARLY_START)


def _down_lanes(sizes: Sizes) -> int:
    """Lanes that share an output: a row of more blocks has more of them."""
    return 16 if sizes.expert_width > WIDE_EXPERT else 8


def _down_outputs(sizes: Sizes) -> int:
    return 4 if sizes.expert_width > WIDE_EXPERT else 2


RULES: Mapping[str, Callable[[Sizes], int]] = {
    "split_kv_parts": split_kv_parts,
    "fp8_units": _fp8_units,
    "early_start": _early_start,
    "down_lanes": _down_lanes,
    "down_outputs": _down_outputs,
}


def computed_constants(card: KernelCard, sizes: Sizes | None) -> dict[str, int]:
    """Keyword arguments of the card's kernel by its rules; the CPU's kernels have none."""
    assert sizes is not None or not card.computed
    return {name: RULES[rule](sizes) for name, rule in card.computed} if sizes is not None else {}
