"""`DeviceDraws`: how the next token of each row is drawn, as device kernels read it: tensors at fixed addresses."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDraws:
    """The fields of `Draw`, one number a row. Filled by one copy from pinned memory before a launch."""

    temperature: torch.Tensor
    """fp32 [S]"""
    top_p: torch.Tensor
    """fp32 [S]"""
    top_k: torch.Tensor
    """int32 [S]"""
    min_p: torch.Tensor
    """fp32 [S]"""
    seed: torch.Tensor
    """int64 [S]"""
    position: torch.Tensor
    """int64 [S]"""
