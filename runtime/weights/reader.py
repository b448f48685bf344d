"""Tensors from a checkpoint's files, decoded to fp32."""

from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open

from firmtoken.runtime.kernels.nvfp4 import dequantise
from firmtoken.runtime.weights.checkpoint import Checkpoint
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.files import unreadable
from firmtoken.runtime.weights.header import AGAIN, TensorHeader
from firmtoken.runtime.weights.stored import Stored

SCALE_RANGE = (1e-8, 1.0)
"""Outside it a scale follows another convention: compressed-tensors stores reciprocals (facts/models.md 7.4)."""

LARGEST_E4M3 = 0x7E
"""The code of 448. Above it lie NaN (0x7F, 0xFF) and what has a sign."""


class Reader:
    """Open files of a checkpoint; any thread may read."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        files = sorted({tensor.file for tensor in checkpoint.tensors.values()})
        self._files = MappingProxyType(
            {file: open_file(checkpoint.folder / file) for file in files}
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

    def read_blocks(self, header: TensorHeader | None) -> torch.Tensor:
        """NVFP4 block scales e4m3 [N,K/16]: none negative, none NaN."""
        assert header is not None
        scale = self.read(header)
        codes = scale.view(torch.uint8)
        if codes.numel() and int(codes.max()) > LARGEST_E4M3:
            numbers = scale.float()
            strange = (numbers < 0) | numbers.isnan()  # -0 is neither
            _refuse_strange(header, numbers, strange, "block scales that are positive or 0")
        return scale

    def decode(self, stored: Stored) -> torch.Tensor:
        """The numbers that it stands for, fp32 (facts/models.md 3.2)."""
        weight = self.read(stored.weight)
        if stored.format == "plain":
            return require_finite(stored.weight, weight.float())
        if stored.format == "fp8":
            numbers = require_finite(stored.weight, weight.float())
            return numbers.mul_(self.read_scale(stored.scale))
        blocks = self.read_blocks(stored.scale)
        return dequantise(weight, blocks, self.read_scale(stored.global_scale))


def open_file(path: Path) -> safe_open:
    """A file whose header preflight has accepted; safetensors is stricter here and there."""
    try:
        return safe_open(path, framework="pt")
    except OSError as error:
        raise unreadable(path, error, AGAIN) from error
    except SafetensorError as error:
        raise LoadError(
            file=path.name, expected="a safetensors file", found=str(error), hint=AGAIN
        ) from error


def require_finite(header: TensorHeader, numbers: torch.Tensor) -> torch.Tensor:
    """The numbers, if each is one."""
    if numbers.numel():
        low, high = torch.aminmax(numbers)  # NaN goes through; a mask would cost a pass of its own
        if not torch.isfinite(high - low):
            _refuse_strange(header, numbers, ~torch.isfinite(numbers), "only finite numbers")
    return numbers


def _refuse_strange(
    header: TensorHeader, numbers: torch.Tensor, strange: torch.Tensor, expected: str
) -> None:
    found = numbers[strange]
    if found.numel():
        raise LoadError(
            file=header.file,
            tensor=header.name,
            expected=expected,
            found=f"{found[0].item():g}",
            hint=AGAIN,
        )
