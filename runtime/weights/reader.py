"""Tensors from the bytes of a checkpoint's files, decoded to fp32."""

import struct

import torch

from firmtoken.runtime.kernels.nvfp4 import dequantise
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.header import AGAIN, TensorHeader
from firmtoken.runtime.weights.reading import BytesOf
from firmtoken.runtime.weights.stored import Stored

DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
}
"""Those that weights and their scales come in, as the format spells them."""

SCALE_RANGE = (1e-8, 1.0)
"""Outside it a scale follows another convention: compressed-tensors stores reciprocals (facts/models.md 7.4)."""

LARGEST_NVFP4 = 6.0 * 448.0
"""Code times block scale, at most."""

NAN, NEGATIVE_NAN = 0x7F, 0xFF
LARGEST_E4M3 = 0x7E
"""The code of 448. Above it lie NaN (0x7F, 0xFF) and what has a sign."""


class Reader:
    """Tensors whose bytes are in memory."""

    def __init__(self, bytes_of: BytesOf) -> None:
        self._bytes_of = bytes_of

    def read(self, header: TensorHeader) -> torch.Tensor:
        """The tensor as stored; valid as long as its bytes are."""
        return typed(self._bytes_of(header), header)

    def read_scale(self, header: TensorHeader | None) -> float:
        """A scalar scale, within its range."""
        assert header is not None
        scale = number(self._bytes_of(header), header)
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

    def read_global(self, stored: Stored) -> float:
        """What NVFP4 numbers are multiplied with, an fp32 number."""
        if not stored.divides:
            return self.read_scale(stored.global_scale)
        assert stored.global_scale is not None
        divisor = self.read(stored.global_scale).view(())
        if not 1 / SCALE_RANGE[1] < float(divisor) < 1 / SCALE_RANGE[0]:
            raise LoadError(
                file=stored.global_scale.file,
                tensor=stored.global_scale.name,
                expected=f"a divisor between {1 / SCALE_RANGE[1]:g} and {1 / SCALE_RANGE[0]:g}",
                found=f"{float(divisor):g}",
                hint="the file is damaged, or stores factors as ModelOpt does",
            )
        return factor_of(divisor)

    def read_codes(self, header: TensorHeader) -> torch.Tensor:
        """FP8 codes e4m3 [N,K], none NaN."""
        codes = self.read(header)
        if codes.numel() and (
            int(codes.view(torch.int8).max()) == NAN
            or int(codes.view(torch.uint8).max()) == NEGATIVE_NAN
        ):
            require_finite(header, codes.float())
        return codes

    def read_blocks(self, header: TensorHeader | None) -> torch.Tensor:
        """NVFP4 block scales e4m3 [N,K/16]: none negative, none NaN."""
        assert header is not None
        return typed(self.block_bytes(header), header)

    def block_bytes(self, header: TensorHeader) -> torch.Tensor:
        """The same as uint8 [N * K/16]."""
        raw = self._bytes_of(header)
        if raw.numel() and raw.numpy().max() > LARGEST_E4M3:
            numbers = typed(raw, header).float()
            strange = (numbers < 0) | numbers.isnan()  # -0 is neither
            _refuse_strange(header, numbers, strange, "block scales that are positive or 0")
        return raw

    def decode(self, stored: Stored) -> torch.Tensor:
        """The numbers that it stands for, fp32 (facts/models.md 3.2)."""
        weight = self.read(stored.weight)
        if stored.format == "plain":
            return require_finite(stored.weight, weight.float())
        if stored.format == "fp8":
            numbers = require_finite(stored.weight, weight.float())
            return numbers.mul_(self.read_scale(stored.scale))
        blocks = self.read_blocks(stored.scale)
        return dequantise(weight, blocks, self.read_global(stored))


def number(raw: torch.Tensor, header: TensorHeader) -> float:
    """Of a scalar. Each call of torch lets another thread have the interpreter, and there are 30,000 scalars: none."""
    if header.dtype != "F32":
        return float(typed(raw, header))
    [found] = struct.unpack("<f", raw.numpy().data)
    return float(found)


def typed(raw: torch.Tensor, header: TensorHeader) -> torch.Tensor:
    """The bytes as what the header says."""
    dtype = DTYPES[header.dtype]
    if dtype is torch.uint8:
        return raw.view(header.shape)
    if raw.storage_offset() % dtype.itemsize:  # a header may be of any length
        raw = raw.clone()
    return raw.view(dtype).view(header.shape)


def factor_of(divisor: torch.Tensor) -> float:
    """An fp32 factor for compressed-tensors' fp32 divisor, 2688 / amax; ModelOpt's factor is amax / 2688.

    Both are rounded, so a reciprocal may be two ulp off. amax is a number of the weights: where one in bf16 gives this
    divisor, the factor is ModelOpt's for the same weights, to the bit.
    """
    amax = (LARGEST_NVFP4 / divisor).bfloat16().float()
    if LARGEST_NVFP4 / amax == divisor:
        return float(amax / LARGEST_NVFP4)
    return float(divisor.reciprocal())


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
