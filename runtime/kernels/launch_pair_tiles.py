"""Launches what puts pairs in order of their expert and cuts them into tiles (`pair_tiles.py`)."""

from dataclasses import dataclass

import torch

from firmtoken.compiler.tensor_bytes import align_up
from firmtoken.compiler.workspaces import ARRAY_ALIGN, most_pair_tiles, pair_bins
from firmtoken.runtime.kernels.pair_tiles import (
    PAIR_WARPS,
    count_pairs,
    pair_chunk,
    pair_tile_rows,
    place_pairs,
)
from firmtoken.runtime.kernels.tile_shapes import TileShapes


@dataclass(frozen=True, slots=True, kw_only=True)
class PairTiles:
    """Where the tiles of a launch lie on the device; how many there are only the device knows."""

    order: torch.Tensor
    """int32 [P]: pairs by expert."""
    tiles: torch.Tensor
    """int32 [3 * most + 1]: slots, first places, ends, and how many tiles there are."""
    most: int
    rows: int
    """Of a tile."""


def find_tiles(
    ids: torch.Tensor,
    by_expert: torch.Tensor | None,
    first: int,
    num_experts: int,
    workspace: torch.Tensor,
    cut: TileShapes,
) -> PairTiles:
    """Tiles of int32 ids [T,k] (below 0: padding); an expert's slot is by_expert[id], or first + id.

    `workspace`: bytes, 16-aligned; what they hold need not last.
    """
    assert ids.is_contiguous() and ids.dtype == torch.int32
    num_pairs, bins = ids.numel(), pair_bins(num_experts)
    chunk = pair_chunk(num_pairs, cut)
    chunks = -(-num_pairs // chunk)
    rows = pair_tile_rows(num_pairs, num_experts, cut)
    most = most_pair_tiles(num_pairs, num_experts, rows)
    words = align_up(num_pairs * 4, ARRAY_ALIGN) // 4
    sizes = (chunks * bins, chunks * bins, words, 3 * most + 1)
    counts, begins, order, tiles = workspace.view(torch.int32)[: sum(sizes)].split_with_sizes(sizes)
    constants = {"CHUNK": chunk, "BINS": bins, "num_warps": PAIR_WARPS}
    count_pairs[(chunks,)](ids, counts, num_pairs, num_experts, **constants)
    place_pairs[(chunks,)](
        ids,
        ids if by_expert is None else by_expert,
        order,
        tiles,
        counts,
        begins,
        num_pairs,
        num_experts,
        first,
        int(by_expert is not None),
        rows,
        most,
        **constants,
    )
    return PairTiles(order=order[:num_pairs], tiles=tiles, most=most, rows=rows)
