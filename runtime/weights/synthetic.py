"""Synthetic weights: the bytes of any tensor of a checkpoint, from a seed and the tensor's name alone. No torch here.

Equal for equal seeds whoever asks, in whatever order, on however many threads. Bits come from Philox, whose stream
numpy promises to keep; numbers are made of them by masks: a thread makes 1.8 GB a second (2-core VM, busy). They are
no model, but behave like one: projections keep unit scale, so that a network of any depth stays finite and its router
spreads.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np
from numpy.typing import NDArray

from firmtoken.compiler.architectures import FAMILIES
from firmtoken.runtime.weights.header import ITEM_BYTES
from firmtoken.runtime.weights.layout import LaidTensor, checkpoint_layout
from firmtoken.schema.model import Model

Bytes = NDArray[np.uint8]
Numbers = NDArray[np.float64]

WORD_BYTES, BLOCK_BYTES = 8, 32
"""Of Philox 4x64: a number, and what one value of its counter gives."""
WORD_MASK = 2**64 - 1
PIECE_BYTES = 2**20
"""Made at a time: fits a core's own cache together with its bits."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
BLOCK_SCALES = (0x6C, 0x0F)
"""E4M3 codes of block scales, the first and a mask of what is added: 96 to 352. ModelOpt's lie below 448."""
FP8_CODES = (0x58, 0x1F)
"""The same of an FP8 matrix, signs aside: 16 to 240, four octaves."""
GAINS = {"lm_head": 3.0}
"""How much wider than its input a projection's output is; 1 where nothing is said.

With 3 the likeliest of 248,320 tokens has about 3 %: neither a die of that many sides, nor a certainty. Of so many
normal logits the largest is 4.5 sigma, and the logarithm of the sum of their exponentials ln(248,320) + 3^2 / 2.
"""
NORM_SPREAD = 0.2
"""Norm weights lie so far around 1: a norm that is left out, or to which 1 is added twice, must show."""
BIAS_SPREAD = 0.1
LEAST_STEP, MOST_STEP = 1e-3, 1e-1
MOST_DECAY = 16.0
"""Where Mamba 2 and the gated delta net start dt and A from: the usual range of `dt_bias` and `A_log`."""
LARGEST_ACTIVATION = 6.0
"""What input scales would have seen; weight-only kernels do not read them."""


def _unit_steps(uniform: Numbers) -> Numbers:
    """dt_bias: softplus of it is a step, log-uniform in its range."""
    step = LEAST_STEP * (MOST_STEP / LEAST_STEP) ** uniform
    return step + np.log(-np.expm1(-step))


VECTORS: Mapping[str, Callable[[Numbers], Numbers]] = {
    "a_log": lambda uniform: np.log(1 + (MOST_DECAY - 1) * uniform),
    "dt_bias": _unit_steps,
    "router_bias": lambda uniform: BIAS_SPREAD * (2 * uniform - 1),
}
"""Weight rows that are no matrices and no norms, from uniform numbers in [0, 1)."""


class SyntheticWeights:
    """Content of every tensor of a model's checkpoint; threads may share it."""

    def __init__(self, model: Model, seed: int) -> None:
        [family] = [family for family in FAMILIES if family.name == model.family]
        facts = family.describe(model, "cuda")
        self.tensors = {tensor.name: tensor for tensor in checkpoint_layout(model)}
        """By name, in the order of the layout."""
        self._seed = seed
        self._neutral = {tensor.name: 1.0 - tensor.add for tensor in facts.tensors}
        codes = (tensor for tensor in self.tensors.values() if tensor.role == "codes")
        self._codes = {_module(tensor.name): tensor for tensor in codes}

    def make(self, name: str, first: int, count: int) -> memoryview:
        """Bytes `first` to `first + count` of a tensor as a file holds them, whole numbers; the caller's own."""
        return self._made(name, first, count).data

    def fill(self, name: str, first: int, memory: memoryview) -> None:
        """The same into `memory`, as many as it has room for."""
        out = np.frombuffer(memory, np.uint8)
        for done in range(0, len(out), PIECE_BYTES):
            piece = out[done : done + PIECE_BYTES]
            piece[:] = self._made(name, first + done, len(piece))

    def _made(self, name: str, first: int, count: int) -> Bytes:
        tensor, key = self.tensors[name], _key(self._seed, name)
        if len(tensor.shape) < 2:
            numbers = self._vector(tensor, _uniform(key, math.prod(tensor.shape)))
            return _encode(numbers, tensor.dtype)[first : first + count]
        return _shaper(tensor)(_bits(key, first, count))

    def _vector(self, tensor: LaidTensor, uniform: Numbers) -> Numbers:
        """Numbers of a vector or a scalar, one for each uniform one in [0, 1)."""
        match tensor.role:
            case "scale" | "global_scale":
                # Within half an octave: gate and up must not have the same one by chance.
                return _matrix_scale(self._codes[_module(tensor.name)]) * 2 ** (uniform - 0.5)
            case "input_scale":
                largest = 448 * (E2M1[-1] if self._codes[_module(tensor.name)].dtype == "U8" else 1)
                return np.full_like(uniform, LARGEST_ACTIVATION / largest)
        if tensor.row in VECTORS:
            return VECTORS[tensor.row](uniform)
        return self._neutral[tensor.row] + NORM_SPREAD * (2 * uniform - 1)


def num_bytes(tensor: LaidTensor) -> int:
    """Of one tensor in a file."""
    return math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype]


def _key(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=16).digest())


class _Streams(threading.local):
    """A thread's own generator, put to the stream that is wanted: a new one would ask the system for a seed first,
    which costs more than many a tensor.
    """

    def __init__(self) -> None:
        self._philox = np.random.Philox(key=0)

    def at(self, key: int, block: int) -> np.random.Philox:
        """As `Philox(key=key, counter=block)`; until the thread's next call."""
        self._philox.state = {
            "bit_generator": "Philox",
            "state": {
                "counter": np.array([block, 0, 0, 0], np.uint64),
                "key": np.array([key & WORD_MASK, key >> 64], np.uint64),
            },
            "buffer": NO_NUMBERS,
            "buffer_pos": len(NO_NUMBERS),  # all of them are used up
            "has_uint32": 0,
            "uinteger": 0,
        }
        return self._philox


NO_NUMBERS = np.zeros(BLOCK_BYTES // WORD_BYTES, np.uint64)
_streams = _Streams()


def _uniform(key: int, count: int) -> Numbers:
    """In [0, 1), from the upper 53 bits of each number."""
    bits = _streams.at(key, 0).random_raw(count) >> np.uint64(11)
    return bits.astype(np.float64) * 2.0**-53


def _bits(key: int, first: int, count: int) -> Bytes:
    """Bytes `first` to `first + count` of a key's stream, which is made in blocks: any part of it can be had alone."""
    block, skipped = divmod(first, BLOCK_BYTES)
    words = -(-(skipped + count) // WORD_BYTES)
    stream = _streams.at(key, block).random_raw(words)
    return stream.view(np.uint8)[skipped : skipped + count]


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _rms_of(tensor: LaidTensor, columns: int) -> float:
    """How large a matrix's numbers are on average, so that inputs of unit scale give outputs of its gain's."""
    if tensor.row == "embed":
        return 1.0  # its rows are looked up, not multiplied with
    return GAINS.get(tensor.row, 1.0) / math.sqrt(columns)


def _matrix_scale(codes: LaidTensor) -> float:
    """The scale that belongs to these codes."""
    if codes.dtype == "U8":
        rms = _rms_of(codes, 2 * codes.shape[1])
        return rms / (_rms(E2M1) * _rms(_e4m3(*BLOCK_SCALES)))
    return _rms_of(codes, codes.shape[1]) / _rms(_e4m3(*FP8_CODES))


def _shaper(tensor: LaidTensor) -> Callable[[Bytes], Bytes]:
    """From random bytes, whole words of them, to numbers of this matrix."""
    match tensor.dtype, tensor.role:
        case "U8", _:
            return lambda raw: raw  # any byte is two codes
        case "F8_E4M3", "scale":
            first, mask = BLOCK_SCALES
            return lambda raw: (raw & np.uint8(mask)) + np.uint8(first)
        case "F8_E4M3", _:
            first, mask = FP8_CODES
            return lambda raw: (raw & np.uint8(0x80 | mask)) + np.uint8(first)
        case ("BF16" | "F32") as dtype, _:
            return _float_shaper(dtype, _rms_of(tensor, tensor.shape[-1]))
    raise AssertionError(f"nobody stores {tensor.row} as {tensor.dtype}")


def _float_shaper(dtype: str, rms: float) -> Callable[[Bytes], Bytes]:
    """A sign, a mantissa and one bit of the exponent stay random: two octaves, on average `rms` within half of one."""
    two_octaves = tuple(octave * (1 + m / 128) for octave in (1, 2) for m in range(128))
    exponent = 127 + round(math.log2(rms / _rms(two_octaves)))
    if dtype == "BF16":
        kept, added = np.uint16(0x80FF), np.uint16(exponent << 7)
        return lambda raw: ((raw.view(np.uint16) & kept) + added).view(np.uint8)
    kept_of_32, added_to_32 = np.uint32(0x80FFFFFF), np.uint32(exponent << 23)
    return lambda raw: ((raw.view(np.uint32) & kept_of_32) + added_to_32).view(np.uint8)


def _encode(values: Numbers, dtype: str) -> Bytes:
    """As F32, or as BF16 rounded to the nearest."""
    words = values.astype(np.float32).view(np.uint32)
    if dtype == "BF16":
        words = ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)
    return words.view(np.uint8)


@cache
def _e4m3(first: int, mask: int) -> tuple[float, ...]:
    """Numbers of the codes `first` to `first + mask`."""
    return tuple(
        (8 + (code & 7)) * 2.0 ** ((code >> 3) - 10) for code in range(first, first + mask + 1)
    )


@cache
def _rms(values: tuple[float, ...]) -> float:
    return math.sqrt(math.fsum(value * value for value in values) / len(values))
