"""How a product of many rows is cut into programs: constants of its card, and what follows from them (no torch)."""

from dataclasses import dataclass

from firmtoken.compiler.workspaces import PAIR_CHUNK

SHAPES = (16, 32, 64, 128)
"""Rows of a tile; the last is the large one, whose weights must be decoded for many rows to keep tensor cores busy."""

TILE_SHAPES = (
    ("large_outputs", 128),
    ("large_warps", 8),
    ("small_outputs", 128),
    ("small_warps", 4),
    ("small_stages", 3),
)
"""Constants of the cards: what was best on an H200 (NOTES.md)."""
ROW_TILES = (*TILE_SHAPES, ("large_from", 640))
"""Of a product with one matrix for all rows."""
PAIR_TILES = (*TILE_SHAPES, ("large_chunk_from", 64 * PAIR_CHUNK))
"""Of products whose rows are put in order of their expert first."""
STEP_COLUMNS = 128
"""Columns of x and w that a step of such a product takes: their number is a multiple of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TileShapes:
    """Outputs, warps and stages of a program with the largest tile, and with smaller ones."""

    large_outputs: int
    large_warps: int
    large_stages: int
    small_outputs: int
    small_warps: int
    small_stages: int
    quads: int = 0
    """Of NVFP4 weights a lane has four columns in a row if not 0, else two (`nvfp4_operand.py`)."""
    large_from: int = 0
    """Rows of a launch from which on the largest tiles pay: before, there are too few programs of them."""
    large_chunk_from: int = 0
    """Pairs from which on chunks are twice as large (`pair_tiles.py`)."""

    def tile_rows(self, wanted: float) -> int:
        """The smallest tile for so many rows, or the largest there is."""
        shapes = SHAPES if wanted >= self.large_from else SHAPES[:-1]
        return next((rows for rows in shapes if rows >= wanted), shapes[-1])

    def constants(self, rows: int) -> dict[str, int | bool]:
        """Of a Triton function with NVFP4 weights, for tiles of so many rows."""
        return {**self.sizes(rows), "QUADS": bool(self.quads)}

    def sizes(self, rows: int) -> dict[str, int]:
        """Of any function."""
        large = rows == SHAPES[-1]
        return {
            "ROWS": rows,
            "OUTPUTS": self.large_outputs if large else self.small_outputs,
            "STAGES": self.large_stages if large else self.small_stages,
        }

    def warps(self, rows: int) -> int:
        """Of a program with tiles of so many rows."""
        return self.large_warps if rows == SHAPES[-1] else self.small_warps
