"""Weights of a linear as a checkpoint stores them: several matrices joined by rows, each with its own scale."""

from dataclasses import dataclass

import torch

MAX_PARTS = 4
"""Matrices of a row that keep a scale of their own: so many row numbers a kernel takes, less one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodedMatrix:
    """FP8 weights as a checkpoint has them: up to four matrices, joined by rows, and perhaps bf16 rows after them."""

    codes: torch.Tensor
    """e4m3fn [N, K], without NaN; 16-byte aligned."""
    scales: torch.Tensor
    """fp32 [parts], one for each coded matrix."""
    starts: tuple[int, ...] = ()
    """First row of each part but the first."""
    tail: torch.Tensor | None = None
    """bf16 [N2, K]; outputs N to N + N2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMatrix:
    """NVFP4 weights as a checkpoint has them; up to four matrices, joined by rows, keep a global scale each."""

    packed: torch.Tensor
    """uint8 [N, K/2], low nibble first; 8-byte aligned."""
    scale: torch.Tensor
    """uint8 or e4m3 [N, K/16], without NaN."""
    globals: torch.Tensor
    """fp32 [parts]."""
    starts: tuple[int, ...] = ()
    """First row of each part but the first."""


Matrix = torch.Tensor | CodedMatrix | PackedMatrix
