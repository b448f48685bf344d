"""The rows of a segment laid out as padded chunks, and back.

Legend: R rows, N chunks, W rows of the longest chunk, F features.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Where each of R rows stands among N chunks of W rows."""

    num_chunks: int
    width: int
    places: torch.Tensor
    """int64 [R]: chunk * W + row of the chunk."""

    def pad(self, x: torch.Tensor) -> torch.Tensor:
        """[R,Hv,F] -> [N,Hv,W,F], zero where a chunk is shorter than W."""
        flat = x.new_zeros(self.num_chunks * self.width, *x.shape[1:])
        flat.index_copy_(0, self.places, x)
        return flat.view(self.num_chunks, self.width, *x.shape[1:]).transpose(1, 2)

    def unpad(self, x: torch.Tensor) -> torch.Tensor:
        """[N,Hv,W,F] -> [R,Hv,F]"""
        return x.transpose(1, 2).flatten(0, 1).index_select(0, self.places)


def make_grid(ends: list[int]) -> Grid:
    """The grid of chunks that end after so many rows each."""
    starts = [0, *ends[:-1]]
    width = max(end - start for start, end in zip(starts, ends, strict=True))
    places = [
        index * width + row
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
        for row in range(end - start)
    ]
    return Grid(num_chunks=len(ends), width=width, places=torch.tensor(places))
