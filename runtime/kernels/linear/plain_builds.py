"""What `linear` with FP8 or bf16 weights is compiled to."""

from collections.abc import Iterator

from firmtoken.runtime.kernels.builds import Build, Launch, row_name
from firmtoken.runtime.kernels.linear.few_rows import ROWS_AT_ONCE, rows_at_once
from firmtoken.runtime.kernels.linear.plain_rows import (
    launch_constants,
    launch_grid,
    multiply_rows,
    product_arguments,
)
from firmtoken.runtime.kernels.linear.plain_tiles import (
    ROWS_OF_A_TILE,
    multiply_tiles,
    tile_constants,
    tile_grid,
)


def product_builds(
    launch: Launch,
    *,
    few: int,
    outputs: int,
    unroll: int,
    tile_outputs: int,
    tile_warps: int,
    block: int,
    stages: int,
    early: int,
    fp8_units: int = 1,
) -> tuple[Build, ...]:
    """All forms for so many rows of `linear` or of `head`; FP8 weights with bf16 rows after them and without."""
    format_name = "fp8_bits" if launch.format == "fp8" and not fp8_units else launch.format
    arguments = product_arguments(
        format_name, launch.pointer("y" if "y" in launch.operands else "logits")
    )
    num_outputs = launch.outputs("w")

    def by_rows(tail: bool) -> Iterator[Build]:
        most = min(few, launch.num_rows)
        held = rows_at_once(most)
        for rows in ROWS_AT_ONCE[: ROWS_AT_ONCE.index(held) + 1]:
            largest = rows if rows < held else most
            yield Build(
                name=row_name(rows) + _words(tail, format_name),
                function=multiply_rows,
                arguments=arguments,
                constants=launch_constants(
                    rows,
                    format_name=format_name,
                    tail=tail,
                    outputs=outputs,
                    unroll=unroll,
                    early=bool(early),
                ),
                num_warps=1,
                grid=launch_grid(largest, num_outputs, outputs=outputs),
            )

    def by_tiles(tail: bool) -> Iterator[Build]:
        if launch.num_rows > few:
            yield Build(
                name=f"{ROWS_OF_A_TILE} rows" + _words(tail, format_name),
                function=multiply_tiles,
                arguments=arguments,
                constants=tile_constants(
                    format_name=format_name,
                    tail=tail,
                    tile_outputs=tile_outputs,
                    block=block,
                    stages=stages,
                    early=bool(early),
                ),
                num_warps=tile_warps,
                grid=tile_grid(launch.num_rows, num_outputs, tile_outputs=tile_outputs),
            )

    # All rows after no coded ones: bf16 weights are a tail alone.
    tails = (True,) if format_name == "bf16" else (False, True)
    return tuple(build for tail in tails for make in (by_rows, by_tiles) for build in make(tail))


def _words(tail: bool, format_name: str) -> str:
    return ", bf16 tail" if tail and format_name != "bf16" else ""
