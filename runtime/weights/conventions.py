"""How exporters name and scale the tensors of one NVFP4 matrix (facts/models.md 3.2)."""

from dataclasses import dataclass

BLOCK_SCALE = ".weight_scale"
"""Suffix of the block scales, F8_E4M3 [N, K/16], and of the one F32 of an FP8 matrix: the same in all conventions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """One exporter's. Codes and block scales are the same bytes in all of them."""

    codes: str
    """Suffix of the packed codes, U8 [N, K/2]."""
    global_scale: str
    """Suffix of the one F32 of the matrix."""
    input_scale: str
    """Suffix of the F32 by which W4A4 kernels divide activations."""
    scalar: tuple[int, ...]
    """Shape of these two."""
    divides: bool
    """Whether numbers are divided by the global scale, not multiplied."""


MODELOPT = Convention(
    codes=".weight",
    global_scale=".weight_scale_2",
    input_scale=".input_scale",
    scalar=(),
    divides=False,
)
COMPRESSED_TENSORS = Convention(
    codes=".weight_packed",
    global_scale=".weight_global_scale",
    input_scale=".input_global_scale",
    scalar=(1,),
    divides=True,
)
CONVENTIONS = (MODELOPT, COMPRESSED_TENSORS)
KV_SCALES = (".k_scale", ".v_scale")
"""Suffixes of the F32 that divides keys, or values, before they become FP8."""
