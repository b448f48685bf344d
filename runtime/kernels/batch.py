"""`Batch`: which tokens of which sequences one launch works on, besides its operands.

Legend: T rows of the launch (padding included), S sequences of the launch.
"""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The rows of one sequence in this launch; consecutive, in order of position."""

    first: int
    """First row of the launch that belongs to it."""
    rows: int
    start: int
    """Position of its first row = tokens of it that are in the KV cache already."""
    pages: torch.Tensor
    """int64 [pages]: page table, covering start + rows tokens."""
    live: int
    """State slot that the sequence's linear layers read and update."""
    shadow: int
    """State slot that gets a copy of the state at the sequence's last page boundary."""
    boundary: int
    """After how many of these rows that boundary lies (1..rows); 0 = not in this launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """How one sequence's next token is drawn: Philox keyed by (seed, position), D19."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One launch's tokens. CPU kernels may walk `segments`; device kernels read the tensors."""

    rows: int
    """T, padding included."""
    real_rows: int
    """Rows that belong to sequences; the others point at the sentinel page, state slot 0 and expert id -1."""
    token_ids: torch.Tensor
    """int64 [T]"""
    positions: torch.Tensor
    """int64 [T]"""
    token_slots: torch.Tensor
    """int64 [T]: page * page_size + offset, where this token's K and V go."""
    segments: tuple[Segment, ...]
    copies: tuple[tuple[int, int], ...] = ()
    """For `copy`: (source row, target row)."""
    moves: tuple[tuple[int, ...], ...] = ()
    """For `snapshot` (state slot, snapshot slot); for `restore` (snapshot slot or -1, live, shadow)."""
    draws: tuple[Draw, ...] = ()
    """For `sample`: one per row of the logits."""
    held: bool = False
    """For `admit`: the layer's cache is held by an open prefill; misses go to the overflow slots."""
