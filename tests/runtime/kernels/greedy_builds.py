"""Triton sources that must not pass a check: too much shared memory, spills, an error."""

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch


@triton.jit
def transpose(x_ptr, y_ptr, SIZE: tl.constexpr):
    """A square goes through shared memory as a whole."""
    row = tl.arange(0, SIZE)[:, None]
    column = tl.arange(0, SIZE)[None, :]
    tl.store(y_ptr + column * SIZE + row, tl.load(x_ptr + row * SIZE + column))


@triton.jit
def centre(x_ptr, y_ptr, SIZE: tl.constexpr):
    """Every number lives until the sum of all is known."""
    at = tl.arange(0, SIZE)
    x = tl.load(x_ptr + at)
    tl.store(y_ptr + at, x - tl.sum(x, axis=0) / SIZE)


@triton.jit
def unknown(x_ptr, y_ptr, SIZE: tl.constexpr):
    """Does not compile."""
    tl.store(y_ptr, tl.load(x_ptr) + no_such_name)  # noqa: F821  that is the point


def _build(function, num_warps: int, size: int) -> tuple[Build, ...]:
    return (
        Build(
            name=f"size {size}",
            function=function,
            arguments={"x_ptr": "*fp32", "y_ptr": "*fp32"},
            constants={"SIZE": size},
            num_warps=num_warps,
            grid=(1,),
        ),
    )


def shared(launch: Launch) -> tuple[Build, ...]:
    """256 KiB of shared memory."""
    return _build(transpose, 16, 256)


def spilling(launch: Launch) -> tuple[Build, ...]:
    """512 numbers a lane."""
    return _build(centre, 1, 16_384)


def wrong(launch: Launch) -> tuple[Build, ...]:
    """An error of the source."""
    return _build(unknown, 1, 32)
