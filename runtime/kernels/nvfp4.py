"""NVFP4: nibbles of E2M1, an E4M3 scale for each 16 of them along a row, one fp32 scale for the whole matrix."""

from functools import lru_cache

import torch

BLOCK = 16
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Values of the codes 0..7; 8..15 are their negatives (8 is -0)."""


def dequantise(packed: torch.Tensor, scale: torch.Tensor, global_scale: float) -> torch.Tensor:
    """fp32 [N,K] = (e2m1 * scale) * global_scale, from packed uint8 [N,K/2] and scale e4m3 [N,K/16].

    The first product is exact in fp32 (2 + 4 significant bits), so each number is rounded once.
    """
    num_rows, half = packed.shape
    values = value_pairs().index_select(0, packed.reshape(-1).int()).view(torch.float32)
    blocks = values.view(num_rows, -1, BLOCK)
    blocks.mul_(scale.float().unsqueeze(2)).mul_(global_scale)
    return blocks.view(num_rows, 2 * half)


@lru_cache
def value_pairs() -> torch.Tensor:
    """int64 [256]: the two fp32 values of a byte, low nibble (even column) first, as one number to look up."""
    codes = torch.tensor((*E2M1, *(-value for value in E2M1)))
    byte = torch.arange(256)
    return torch.stack((codes[byte & 15], codes[byte >> 4]), dim=1).view(torch.int64).view(256)
