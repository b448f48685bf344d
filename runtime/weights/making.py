"""The bytes of synthetic tensors, where `reading` has those of files."""

from collections.abc import Sequence

import torch

from firmtoken.runtime.weights.checkpoint import Maker
from firmtoken.runtime.weights.disk import BLOCK
from firmtoken.runtime.weights.header import TensorHeader
from firmtoken.runtime.weights.reading import BytesOf, Job


def make_batch(maker: Maker, jobs: Sequence[Job], memory: torch.Tensor) -> BytesOf:
    """The tensors of these jobs in `memory`, uint8; each from a block on, so that any dtype can view it."""
    view = memory.numpy().data
    places: dict[TensorHeader, int] = {}
    start = 0
    for tensor in {tensor: None for job in jobs for tensor in job.tensors}:
        maker.fill(tensor.name, tensor.offset, view[start : start + tensor.bytes])
        places[tensor] = start
        start += -(-tensor.bytes // BLOCK) * BLOCK

    def bytes_of(tensor: TensorHeader) -> torch.Tensor:
        begin = places[tensor]
        return memory[begin : begin + tensor.bytes]

    return bytes_of
