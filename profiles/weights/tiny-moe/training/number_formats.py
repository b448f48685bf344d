"""NVFP4 and per-tensor FP8 as ModelOpt writes them: quantise, pack, and read back."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

GROUP = 16
E2M1_LARGEST = 6.0
E4M3_LARGEST = 448.0
NVFP4_RANGE = E2M1_LARGEST * E4M3_LARGEST
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Nvfp4:
    """A matrix [..., N, K]; leading dimensions are independent matrices."""

    codes: Tensor  # uint8 [..., N, K], 0..15
    block_scale: Tensor  # float8_e4m3fn [..., N, K/16]
    global_scale: Tensor  # float32 [...], the checkpoint's weight_scale_2


def to_nvfp4(weight: Tensor) -> Nvfp4:
    blocks = weight.float().unflatten(-1, (-1, GROUP))  # [..., N, K/16, 16]
    largest = blocks.abs().amax(dim=-1)
    global_scale = (largest.amax(dim=(-2, -1)) / NVFP4_RANGE).clamp(min=1e-12)
    wanted = largest / E2M1_LARGEST / global_scale[..., None, None]
    block_scale = wanted.clamp(max=E4M3_LARGEST).to(torch.float8_e4m3fn)
    step = block_scale.float() * global_scale[..., None, None]
    scaled = blocks / torch.where(step > 0, step, torch.inf)[..., None]
    return Nvfp4(
        codes=_e2m1_codes(scaled).flatten(-2),
        block_scale=block_scale,
        global_scale=global_scale,
    )


def from_nvfp4(matrix: Nvfp4) -> Tensor:
    """float32 [..., N, K]."""
    table = torch.tensor(E2M1, device=matrix.codes.device)
    values = table[matrix.codes.int()].unflatten(-1, (-1, GROUP))
    step = matrix.block_scale.float() * matrix.global_scale[..., None, None]
    return (values * step[..., None]).flatten(-2)


def pack(codes: Tensor) -> Tensor:
    """uint8 [N, K/2]: the even column in the low nibble."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    return torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)


def to_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """float8_e4m3fn like `weight`, and its float32 multiplier []."""
    scale = (weight.float().abs().amax() / E4M3_LARGEST).clamp(min=1e-12)
    return (weight.float() / scale).to(torch.float8_e4m3fn), scale


def _e2m1_codes(scaled: Tensor) -> Tensor:
    """To nearest; ties go to the even code."""
    size = scaled.abs()
    code = (size > 0.25).to(torch.uint8)
    code += size >= 0.75
    code += size > 1.25
    code += size >= 1.75
    code += size > 2.5
    code += size >= 3.5
    code += size > 5.0
    return code | ((scaled < 0).to(torch.uint8) << 3)
