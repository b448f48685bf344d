"""Writes one word of the engine's position: what a captured program is at, for whoever watches from outside (D18)."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=("index", "value"))
def store_word(words_ptr, index, value):
    """words[index] = value, int64 in pinned host memory."""
    tl.store(words_ptr + index, value.to(tl.int64))


def write_word(words: torch.Tensor, index: int, value: int) -> None:
    """words[index] = value when the current stream has come here; `words` int64, pinned."""
    store_word[(1,)](words, index, value, num_warps=1)
