"""The bytes of synthetic tensors, where `reading` has those of files."""

from collections.abc import Sequence

import torch

from firmtoken.runtime.weights.checkpoint import Maker
from firmtoken.runtime.weights.header import TensorHeader
from firmtoken.runtime.weights.reading import BytesOf, Job

MAKERS = 4
"""Threads that make and put in place: more of them wait for the interpreter. On 16 cores of the H200's host a prototype
of it was fastest with 4 (of 2, 4, 8 and 16)."""


def make_batch(maker: Maker, _jobs: Sequence[Job], _memory: torch.Tensor) -> BytesOf:
    """Each tensor is made when a job asks for it: in a buffer first it would be copied once more."""

    def bytes_of(tensor: TensorHeader) -> torch.Tensor:
        return torch.frombuffer(
            maker.make(tensor.name, tensor.offset, tensor.bytes), dtype=torch.uint8
        )

    return bytes_of
