"""How one matrix is stored, decided from its dtype and its siblings (facts/models.md 3.2, 3.3)."""

from dataclasses import dataclass

from firmtoken.runtime.weights.checkpoint import Checkpoint
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.header import TensorHeader

PLAIN = ("BF16", "F16", "F32")
BLOCK = 16
"""Columns that share an NVFP4 block scale."""
EXPORT = "this is another quantisation layout; use a ModelOpt export"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One matrix or vector of the checkpoint and the tensors that make it up."""

    format: str
    """`plain`, `fp8` (one scale) or `nvfp4`."""
    shape: tuple[int, ...]
    """Of the numbers that it stands for."""
    weight: TensorHeader
    scale: TensorHeader | None = None
    global_scale: TensorHeader | None = None

    @property
    def tensors(self) -> tuple[TensorHeader, ...]:
        """All that must be read."""
        parts = (self.weight, self.scale, self.global_scale)
        return tuple(part for part in parts if part is not None)

    @property
    def bytes(self) -> int:
        """Bytes of all of them."""
        return sum(part.bytes for part in self.tensors)


def find_stored(checkpoint: Checkpoint, source: str) -> Stored | None:
    """The module (its `.weight`) or parameter of this logical name; None if there is neither."""
    weight = checkpoint.find(f"{source}.weight") or checkpoint.find(source)
    if weight is None:
        return None
    if weight.dtype in PLAIN:
        return Stored(format="plain", shape=weight.shape, weight=weight)
    scale = checkpoint.find(f"{source}.weight_scale")
    global_scale = checkpoint.find(f"{source}.weight_scale_2")
    if weight.dtype == "F8_E4M3":
        return _fp8(weight, scale)
    if weight.dtype == "U8":
        return _nvfp4(weight, scale, global_scale)
    raise LoadError(
        file=weight.file,
        tensor=weight.name,
        expected="BF16, F16, F32, F8_E4M3 or U8",
        found=weight.dtype,
        hint=EXPORT,
    )


def _fp8(weight: TensorHeader, scale: TensorHeader | None) -> Stored:
    if scale is None or not _is_scalar(scale):
        raise LoadError(
            file=weight.file,
            tensor=weight.name,
            expected="one F32 `weight_scale` beside F8_E4M3",
            found=_describe(scale),
            hint=EXPORT,
        )
    return Stored(format="fp8", shape=weight.shape, weight=weight, scale=scale)


def _nvfp4(
    weight: TensorHeader, scale: TensorHeader | None, global_scale: TensorHeader | None
) -> Stored:
    if len(weight.shape) != 2 or 2 * weight.shape[1] % BLOCK:
        raise LoadError(
            file=weight.file,
            tensor=weight.name,
            expected=f"packed rows of a multiple of {BLOCK} numbers",
            found=_describe(weight),
            hint=EXPORT,
        )
    num_rows, columns = weight.shape[0], 2 * weight.shape[1]
    blocks = (num_rows, columns // BLOCK)
    if scale is None or scale.dtype != "F8_E4M3" or scale.shape != blocks:
        raise LoadError(
            file=weight.file,
            tensor=weight.name,
            expected=f"`weight_scale` F8_E4M3 {list(blocks)} beside U8 {list(weight.shape)}",
            found=_describe(scale),
            hint=EXPORT,
        )
    if global_scale is None or not _is_scalar(global_scale):
        raise LoadError(
            file=weight.file,
            tensor=weight.name,
            expected="one F32 `weight_scale_2` beside U8",
            found=_describe(global_scale),
            hint=EXPORT,
        )
    shape = (num_rows, columns)
    return Stored(
        format="nvfp4", shape=shape, weight=weight, scale=scale, global_scale=global_scale
    )


def _is_scalar(tensor: TensorHeader) -> bool:
    # Rank 0 in ModelOpt's files, [1] in some others.
    return tensor.dtype == "F32" and tensor.shape in ((), (1,))


def _describe(tensor: TensorHeader | None) -> str:
    return "none" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"
