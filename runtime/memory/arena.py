"""The bytes that a plan placed: one device arena, and one segment for each host space.

On a CUDA device host spaces that copies use are pinned; the arena is one allocation of exactly the plan's bytes.
"""

import mmap
from collections.abc import Mapping, Sequence

import torch

from firmtoken.compiler.places import Space
from firmtoken.runtime.memory.segment_pages import take_pages


class NoMemory(Exception):
    """The machine did not give what the plan needs."""


class Arena:
    """Everything is allocated here, once, and zeroed; nothing grows afterwards."""

    def __init__(
        self, spaces: Sequence[Space], segments: Mapping[str, int], device: str = "cpu"
    ) -> None:
        """`segments`: host space -> file descriptor of shared memory; a space without one is private memory."""
        self._spaces = {space.name: space for space in spaces}
        ends = [space.offset + space.bytes for space in spaces if space.memory == "device"]
        size = max(ends, default=0)
        self.device = _private_bytes(size, device)
        self.host = {
            space.name: _host_bytes(space, segments.get(space.name))
            for space in spaces
            if space.memory == "host"
        }
        for space in spaces:
            if space.pinned_piece:
                pin(self.host[space.name], space.pinned_piece)

    def bytes_of(self, space_name: str, offset: int, size: int) -> torch.Tensor:
        """uint8 [size]: bytes `offset` to `offset + size` of a space."""
        space = self._spaces[space_name]
        assert offset >= 0 and offset + size <= space.bytes, f"outside of space {space_name}"
        if space.memory == "host":
            return self.host[space_name][offset : offset + size]
        start = space.offset + offset
        return self.device[start : start + size]

    def size(self, space_name: str) -> int:
        """Bytes of a space."""
        return self._spaces[space_name].bytes

    def address(self, space_name: str) -> int:
        """Where a device space starts in the arena."""
        space = self._spaces[space_name]
        assert space.memory == "device"
        return space.offset


def _host_bytes(space: Space, descriptor: int | None) -> torch.Tensor:
    if descriptor is None:
        return _private_bytes(space.bytes)
    # Every page now, so that a host without the memory says so before anything is read; after a restart they are there.
    try:
        take_pages(descriptor)
    except OSError as error:
        raise NoMemory(f"{space.bytes:,} bytes of `{space.name}`: {error.strerror}") from error
    # The tensor keeps the mapping alive.
    return torch.frombuffer(mmap.mmap(descriptor, space.bytes), dtype=torch.uint8)


def pin(memory: torch.Tensor, piece_bytes: int) -> None:
    """Locks host memory for copies to and from a GPU, a piece at a time; no copy may cross two pieces."""
    # The system clears a page when it is first touched: all threads have it do so, locking would with one.
    memory[:: mmap.PAGESIZE].max()
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no type for it
    for begin in range(0, memory.numel(), piece_bytes):
        piece = memory[begin : begin + piece_bytes]
        error = runtime.cudaHostRegister(piece.data_ptr(), piece.numel(), 0)
        if int(error):
            raise NoMemory(f"{memory.numel():,} bytes of host memory could not be pinned: {error}")


def _private_bytes(size: int, device: str = "cpu") -> torch.Tensor:
    try:
        # Touches every page, unlike `zeros`.
        return torch.empty(size, dtype=torch.uint8, device=device).zero_()
    except RuntimeError as error:  # torch has no narrower type for a refused allocation
        raise NoMemory(f"{size:,} bytes were refused by the system") from error
