"""How one matrix is stored, decided from its dtype and its siblings (facts/models.md 3.1 to 3.3)."""

from dataclasses import dataclass, replace

from firmtoken.compiler.tensor_bytes import NVFP4_BLOCK
from firmtoken.runtime.weights.checkpoint import Checkpoint
from firmtoken.runtime.weights.conventions import (
    BLOCK_SCALE,
    COMPRESSED_TENSORS,
    MODELOPT,
    Convention,
)
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.header import TensorHeader

PLAIN = ("BF16", "F16", "F32")
EXPORT = (
    "this is another quantisation layout; use an export of ModelOpt, or NVFP4 of compressed-tensors"
)


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
    divides: bool = False
    """Whether `global_scale` is the reciprocal of what its numbers are multiplied with."""

    @property
    def tensors(self) -> tuple[TensorHeader, ...]:
        """All that must be read."""
        parts = (self.weight, self.scale, self.global_scale)
        return tuple(part for part in parts if part is not None)

    @property
    def bytes(self) -> int:
        """Bytes of all of them."""
        return sum(part.bytes for part in self.tensors)

    def rows(self, first: int, count: int) -> "Stored":
        """`count` of its rows: a matrix of its own, with the scales that they share with the others."""
        # FP8 has one scale for all rows, NVFP4 one for each block of a row.
        scale = self.scale
        if self.format == "nvfp4" and scale is not None:
            scale = scale.rows(first, count)
        return replace(
            self,
            shape=(count, *self.shape[1:]),
            weight=self.weight.rows(first, count),
            scale=scale,
        )


def is_stored(checkpoint: Checkpoint, source: str) -> bool:
    """Whether there is a module or parameter of this logical name."""
    return _weight(checkpoint, source) is not None or _packed(checkpoint, source) is not None


def find_stored(checkpoint: Checkpoint, source: str) -> Stored | None:
    """The module (its `.weight`) or parameter of this logical name; None if there is neither."""
    weight, packed = _weight(checkpoint, source), _packed(checkpoint, source)
    scale = checkpoint.find(source + BLOCK_SCALE)
    if packed is not None:
        if weight is not None:
            raise _fault(packed, f"no `{weight.name}` beside it", "both")
        return _nvfp4(checkpoint, source, packed, scale, COMPRESSED_TENSORS)
    if weight is None:
        return None
    if weight.dtype == "F8_E4M3":
        return _fp8(weight, scale)
    if weight.dtype == "U8":
        return _nvfp4(checkpoint, source, weight, scale, MODELOPT)
    if weight.dtype not in PLAIN:
        raise _fault(weight, "BF16, F16, F32, F8_E4M3 or U8", weight.dtype)
    if scale is not None:
        raise _fault(weight, f"codes, since `{scale.name}` is beside it", weight.dtype)
    return Stored(format="plain", shape=weight.shape, weight=weight)


def find_expert(
    checkpoint: Checkpoint, sources: tuple[str, ...], layer: int, expert: int, *, per_layer: int
) -> tuple[Stored, ...] | None:
    """gate, up and down of one expert, from a module each or from those that hold a whole layer; None without either.

    `sources`: the logical names of the three, with `{l}` and `{e}`. `per_layer`: experts of a layer.
    """
    found = tuple(find_stored(checkpoint, name.format(l=layer, e=expert)) for name in sources)
    alone = tuple(part for part in found if part is not None)
    if len(alone) == len(sources):
        return alone
    stacked = tuple(
        find_stored(checkpoint, name.format(l=layer)) for name in stacked_sources(sources)
    )
    match stacked:
        case Stored() as gate_up, Stored() as down:
            for whole, parts in ((gate_up, 2), (down, 1)):
                _require_stack(whole, per_layer, parts)
            both, half = _of_expert(gate_up, expert), gate_up.shape[1] // 2
            return both.rows(0, half), both.rows(half, half), _of_expert(down, expert)
    return None


def stacked_sources(sources: tuple[str, ...]) -> tuple[str, str]:
    """What holds gate and up, and what holds down, of all experts of a layer: transformers' own names."""
    stem, _, _ = sources[0].partition("{e}.")
    return stem + "gate_up_proj", stem + "down_proj"


def _require_stack(stored: Stored, count: int, parts: int) -> None:
    """Raises `LoadError` unless it holds numbers of so many experts, each of so many matrices of equal height."""
    match stored:
        case Stored(format="plain", shape=(found, rows, _)) if found == count and not rows % parts:
            return
    expected = f"[{count}, {'2 x ' if parts == 2 else ''}rows, columns] of {count} experts in BF16, F16 or F32"
    raise _fault(stored.weight, expected, _describe(stored.weight))


def _of_expert(stored: Stored, expert: int) -> Stored:
    shape = stored.shape[1:]
    weight = replace(stored.weight.rows(expert, 1), shape=shape)
    return replace(stored, shape=shape, weight=weight)


def _weight(checkpoint: Checkpoint, source: str) -> TensorHeader | None:
    return checkpoint.find(f"{source}.weight") or checkpoint.find(source)


def _packed(checkpoint: Checkpoint, source: str) -> TensorHeader | None:
    return checkpoint.find(source + COMPRESSED_TENSORS.codes)


def _fp8(weight: TensorHeader, scale: TensorHeader | None) -> Stored:
    if scale is None or not _is_scalar(scale):
        raise _fault(weight, "one F32 `weight_scale` beside F8_E4M3", _describe(scale))
    return Stored(format="fp8", shape=weight.shape, weight=weight, scale=scale)


def _nvfp4(
    checkpoint: Checkpoint,
    source: str,
    weight: TensorHeader,
    scale: TensorHeader | None,
    convention: Convention,
) -> Stored:
    if weight.dtype != "U8" or len(weight.shape) != 2 or 2 * weight.shape[1] % NVFP4_BLOCK:
        raise _fault(weight, f"U8 rows of a multiple of {NVFP4_BLOCK} numbers", _describe(weight))
    num_rows, columns = weight.shape[0], 2 * weight.shape[1]
    blocks = (num_rows, columns // NVFP4_BLOCK)
    if scale is None or scale.dtype != "F8_E4M3" or scale.shape != blocks:
        expected = f"`weight_scale` F8_E4M3 {list(blocks)} beside U8 {list(weight.shape)}"
        raise _fault(weight, expected, _describe(scale))
    global_scale = checkpoint.find(source + convention.global_scale)
    if global_scale is None or not _is_scalar(global_scale):
        name = convention.global_scale.removeprefix(".")
        raise _fault(weight, f"one F32 `{name}` beside U8", _describe(global_scale))
    return Stored(
        format="nvfp4",
        shape=(num_rows, columns),
        weight=weight,
        scale=scale,
        global_scale=global_scale,
        divides=convention.divides,
    )


def _is_scalar(tensor: TensorHeader) -> bool:
    # Rank 0 in ModelOpt's files, [1] in those of compressed-tensors.
    return tensor.dtype == "F32" and tensor.shape in ((), (1,))


def _describe(tensor: TensorHeader | None) -> str:
    return "none" if tensor is None else f"{tensor.dtype} {list(tensor.shape)}"


def _fault(tensor: TensorHeader, expected: str, found: str) -> LoadError:
    return LoadError(
        file=tensor.file, tensor=tensor.name, expected=expected, found=found, hint=EXPORT
    )
