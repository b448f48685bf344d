"""Tensors from a checkpoint's files, decoded to fp32."""

from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open

from firmtoken.runtime.kernels.nvfp4 import dequantise
from firmtoken.runtime.weights.checkpoint import Checkpoint
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.header import AGAIN, TensorHeader
from firmtoken.runtime.weights.stored import Stored

SCALE_RANGE = (1e-8, 1.0)
"""Outside it a scale follows another convention: compressed-tensors stores reciprocals (facts/models.md 7.4)."""


class Reader:
    """Open files of a checkpoint; any thread may read."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        files = sorted({tensor.file for tensor in checkpoint.tensors.values()})
        self._files = MappingProxyType(
            {file: safe_open(checkpoint.folder / file, framework="pt") for file in files}
        )

    def read(self, header: TensorHeader) -> torch.Tensor:
        """The tensor as stored."""
        try:
            tensor: torch.Tensor = self._files[header.file].get_tensor(header.name)  # type: ignore[no-untyped-call]  # a stub without types
        except SafetensorError as error:
            raise LoadError(
                file=header.file,
                tensor=header.name,
                expected="readable data",
                found=str(error),
                hint=AGAIN,
            ) from error
        return tensor

    def read_scale(self, header: TensorHeader | None) -> float:
        """A scalar scale, within its range."""
        assert header is not None
        scale = float(self.read(header))
        low, high = SCALE_RANGE
        if not low < scale < high:
            raise LoadError(
                file=header.file,
                tensor=header.name,
                expected=f"a scale between {low:g} and {high:g}",
                found=f"{scale:g}",
                hint="the file is damaged, or stores reciprocals as compressed-tensors does",
            )
        return scale

    def decode(self, stored: Stored) -> torch.Tensor:
        """The numbers that it stands for, fp32 (facts/models.md 3.2)."""
        weight = self.read(stored.weight)
        if stored.format == "plain":
            return weight.float()
        if stored.format == "fp8":
            return weight.float().mul_(self.read_scale(stored.scale))
        assert stored.scale is not None
        blocks = self.read(stored.scale)
        return dequantise(weight, blocks, self.read_scale(stored.global_scale))
