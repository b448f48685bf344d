"""The bytes that a plan placed: one device arena, and one segment for each host space."""

import mmap
import os
from collections.abc import Mapping, Sequence

import torch

from firmtoken.compiler.places import Space


class NoMemory(Exception):
    """The machine did not give what the plan needs."""


class Arena:
    """Everything is allocated here, once, and zeroed; nothing grows afterwards."""

    def __init__(self, spaces: Sequence[Space], segments: Mapping[str, int]) -> None:
        """`segments`: host space -> file descriptor of shared memory; a space without one is private memory."""
        self._spaces = {space.name: space for space in spaces}
        device = [space for space in spaces if space.memory == "device"]
        size = max((space.offset + space.bytes for space in device), default=0)
        self.device = _private_bytes(size)
        self.host = {
            space.name: _host_bytes(space, segments.get(space.name))
            for space in spaces
            if space.memory == "host"
        }

    def bytes_of(self, space_name: str, offset: int, size: int) -> torch.Tensor:
        """uint8 [size]: bytes `offset` to `offset + size` of a space."""
        space = self._spaces[space_name]
        assert offset >= 0 and offset + size <= space.bytes, f"outside of space {space_name}"
        if space.memory == "host":
            return self.host[space_name][offset : offset + size]
        start = space.offset + offset
        return self.device[start : start + size]

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
        os.posix_fallocate(descriptor, 0, space.bytes)
    except OSError as error:
        raise NoMemory(f"{space.bytes:,} bytes of `{space.name}`: {error.strerror}") from error
    # The tensor keeps the mapping alive.
    return torch.frombuffer(mmap.mmap(descriptor, space.bytes), dtype=torch.uint8)


def _private_bytes(size: int) -> torch.Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8).zero_()  # touches every page, unlike `zeros`
    except RuntimeError as error:  # torch has no narrower type for a refused allocation
        raise NoMemory(f"{size:,} bytes were refused by the system") from error
