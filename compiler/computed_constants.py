"""Constants of a kernel that follow from the machine and the model: a card names the rule, the plan has the number."""

from collections.abc import Callable, Mapping

from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.workspaces import Sizes, split_kv_parts, wide_tokens

FP8_UNITS = (8, 9)
"""From here on a card converts e4m3 itself (PTX ISA, `cvt`)."""
EARLY_START = (9, 0)
"""From here on a launch may start before the one before it has ended (CUDA C++ Programming Guide, programmatic
dependent launch)."""
WGMMA = 9
"""Major capability of the only cards that have it (PTX ISA, `wgmma`)."""
HOPPER = (9, 0)
"""Where the products of prefill were measured; forms of other cards are those that compile without spills."""
WIDE_MEMORY = ((9, 0), (10, 0), (10, 3))
"""227 KB of shared memory for a block (CUDA C++ Programming Guide, technical specifications)."""
WIDE_HEAD = 256
"""Head size from which on a tile is bound by registers and shared memory."""
WIDE_EXPERT = 1024
"""Between the two widths that were measured, 512 and 1,536 (runtime/kernels/NOTES.md)."""


def _fp8_units(sizes: Sizes) -> int:
    return int(sizes.capability >= FP8_UNITS)


def _early_start(sizes: Sizes) -> int:
    return int(sizes.capability >= EARLY_START)


def _down_lanes(sizes: Sizes) -> int:
    """Lanes that share an output: a row of more blocks has more of them."""
    return 16 if sizes.expert_width > WIDE_EXPERT else 8


def _prefill_tile(sizes: Sizes) -> int:
    """Rows of a product of attention: wide heads fill the registers with half as many but on 9.0."""
    return 128 if sizes.head_dim < WIDE_HEAD or sizes.capability == HOPPER else 64


def _prefill_tile_fp8(sizes: Sizes) -> int:
    """What FP8 is converted to takes registers too: on 12.0 they are too few at any head size."""
    return 64 if sizes.capability >= (12, 0) else _prefill_tile(sizes)


def _prefill_block(sizes: Sizes) -> int:
    """Tokens at a time: wide heads fill 99 KB of shared memory with half as many."""
    return 64 if sizes.head_dim < WIDE_HEAD or sizes.capability in WIDE_MEMORY else 32


def _roomy(sizes: Sizes) -> bool:
    """Whether FP8 pages find registers beside the loop over wide ones: not in a tile of 128 rows, but on 9.0."""
    few_columns = sizes.head_dim < WIDE_HEAD and sizes.capability == HOPPER
    return few_columns or _prefill_tile_fp8(sizes) < 128


def _prefill_block_fp8(sizes: Sizes) -> int:
    return _prefill_block(sizes) if _roomy(sizes) else 32


def _prefill_stages_fp8(sizes: Sizes) -> int:
    """Blocks of FP8 pages that are under way, and one."""
    return 2 if _roomy(sizes) else 1


def _sms(sizes: Sizes) -> int:
    return sizes.sms


def _q_again(sizes: Sizes) -> int:
    """Whether each loop over tokens loads q: wgmma takes it as it lies in shared memory, mma as the format wants it."""
    return int(sizes.capability[0] != WGMMA)


def _gdn_stages(sizes: Sizes) -> int:
    return 3 if sizes.capability == HOPPER else 2


def _sequences(sizes: Sizes) -> int:
    """Of one launch, as a power of two: a program looks through them at once."""
    return 1 << (sizes.requests - 1).bit_length()


def _conv_words(sizes: Sizes) -> int:
    """Of four bytes, in bf16: the convolution's state of one linear layer and sequence."""
    linear = sizes.linear
    assert linear is not None, "no other model has a kernel with it"
    keys = 2 * linear.num_key_heads * linear.key_head_dim
    channels = keys + linear.num_value_heads * linear.value_head_dim
    return channels * (linear.conv_kernel - 1) * 2 // 4


def _recurrent_words(sizes: Sizes) -> int:
    """Of four bytes, in fp32: the recurrent state of one linear layer and sequence."""
    return sizes.recurrent_elements


def _large_tile_stages(sizes: Sizes) -> int:
    """Steps of a product of many rows that are under way: as many as shared memory holds, 227 KB from 9.0 to 10.3,
    99 KB on 8.6, 8.9 and 12.0 (hardware.md 1.1)."""
    return 4 if (9, 0) <= sizes.capability < (12, 0) else 3


def _quads(sizes: Sizes) -> int:
    """Whether a lane of a tensor core has four columns of a decoded operand in a row (mma) or two (wgmma)."""
    return int(sizes.capability[0] != WGMMA)


def _num_experts(sizes: Sizes) -> int:
    return sizes.experts


RULES: Mapping[str, Callable[[Sizes], int]] = {
    "split_kv_parts": split_kv_parts,
    "fp8_units": _fp8_units,
    "early_start": _early_start,
    "down_lanes": _down_lanes,
    "large_tile_stages": _large_tile_stages,
    "quads": _quads,
    "num_experts": _num_experts,
    "prefill_tile": _prefill_tile,
    "prefill_tile_fp8": _prefill_tile_fp8,
    "prefill_block": _prefill_block,
    "prefill_block_fp8": _prefill_block_fp8,
    "prefill_stages_fp8": _prefill_stages_fp8,
    "q_again": _q_again,
    "sms": _sms,
    "wide_tokens": wide_tokens,
    "gdn_stages": _gdn_stages,
    "sequences": _sequences,
    "conv_words": _conv_words,
    "recurrent_words": _recurrent_words,
}


def computed_constants(card: KernelCard, sizes: Sizes | None) -> dict[str, int]:
    """Keyword arguments of the card's kernel by its rules; the CPU's kernels have none."""
    assert sizes is not None or not card.computed
    return {name: RULES[rule](sizes) for name, rule in card.computed} if sizes is not None else {}
