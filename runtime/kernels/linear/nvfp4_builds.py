"""What `linear` and `head` with NVFP4 weights are compiled to."""

from collections.abc import Iterator

from firmtoken.runtime.kernels.builds import Build, Launch, row_name
from firmtoken.runtime.kernels.linear.few_rows import ROWS_AT_ONCE, rows_at_once
from firmtoken.runtime.kernels.linear.nvfp4_rows import (
    launch_constants,
    launch_grid,
    multiply_rows,
    product_arguments,
)
from firmtoken.runtime.kernels.linear.nvfp4_tiles import (
    TILE_COLUMNS,
    multiply_tiles,
    tile_constants,
    tile_grid,
    tile_rows,
)


def linear_builds(
    launch: Launch, *, few: int, outputs: int, unroll: int, tile_outputs: int, early: int
) -> tuple[Build, ...]:
    """All forms of `linear` for so many rows, y in bf16, and the grid of the largest launch of each."""
    return (
        *_by_rows(
            launch, "*bf16", few, normed=False, outputs=outputs, unroll=unroll, early=bool(early)
        ),
        *_by_tiles(
            launch, "*bf16", few, normed=False, tile_outputs=tile_outputs, early=bool(early)
        ),
    )


def head_builds(
    launch: Launch,
    *,
    eps: float,
    few: int,
    outputs: int,
    unroll: int,
    tile_outputs: int,
    early: int,
) -> tuple[Build, ...]:
    """As `linear_builds` for `head`, whose logits are fp32; `eps` is an argument."""
    return (
        *_by_rows(
            launch, "*fp32", few, normed=True, outputs=outputs, unroll=unroll, early=bool(early)
        ),
        *_by_tiles(launch, "*fp32", few, normed=True, tile_outputs=tile_outputs, early=bool(early)),
    )


def _by_rows(
    launch: Launch, y: str, few: int, *, normed: bool, outputs: int, unroll: int, early: bool
) -> Iterator[Build]:
    most = min(few, launch.num_rows) if _has_tiles(launch) else launch.num_rows
    held = rows_at_once(most)
    for rows in ROWS_AT_ONCE[: ROWS_AT_ONCE.index(held) + 1]:
        largest = rows if rows < held else most
        yield Build(
            name=row_name(rows),
            function=multiply_rows,
            arguments=product_arguments(y),
            constants=launch_constants(
                rows, normed=normed, outputs=outputs, unroll=unroll, early=early
            ),
            num_warps=1,
            grid=launch_grid(largest, launch.outputs("w"), outputs=outputs),
        )


def _by_tiles(
    launch: Launch, y: str, few: int, *, normed: bool, tile_outputs: int, early: bool
) -> Iterator[Build]:
    if launch.num_rows <= few or not _has_tiles(launch):
        return
    held = tile_rows(launch.num_rows, normed=normed)
    for rows in sorted({tile_rows(few + 1, normed=normed), held}):
        largest = rows if rows < held else launch.num_rows
        yield Build(
            name=f"tiles of {row_name(rows)}",
            function=multiply_tiles,
            arguments=product_arguments(y),
            constants=tile_constants(rows, normed=normed, tile_outputs=tile_outputs, early=early),
            num_warps=1,
            grid=tile_grid(largest, launch.outputs("w"), normed=normed, tile_outputs=tile_outputs),
        )


def _has_tiles(launch: Launch) -> bool:
    return launch.columns("w") % TILE_COLUMNS == 0
