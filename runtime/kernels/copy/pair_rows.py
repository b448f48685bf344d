"""Rows from one tensor to another by pairs of numbers: the Triton function that `copy` launches."""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch

INTEGERS = ("width", "source_stride", "target_stride")


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def copy_pairs(
    source_ptr, target_ptr, pairs_ptr, width, source_stride, target_stride, BLOCK: tl.constexpr
):
    """Program (b, i): the b-th BLOCK columns of pair i; nothing where its first number is negative."""
    pair_ptr = pairs_ptr + tl.program_id(1) * 2
    source = tl.load(pair_ptr).to(tl.int64)
    target = tl.load(pair_ptr + 1).to(tl.int64)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (column < width) & (source >= 0)
    values = tl.load(source_ptr + source * source_stride + column, mask=inside)
    tl.store(target_ptr + target * target_stride + column, values, mask=inside)


def copy_builds(launch: Launch, *, block: int, warps: int) -> tuple[Build, ...]:
    """The one form. A pair for each sequence that ends in the launch: no more than rows."""
    return (
        Build(
            name="rows",
            function=copy_pairs,
            arguments={
                "source_ptr": launch.pointer("source"),
                "target_ptr": launch.pointer("target"),
                "pairs_ptr": "*i32",
                **dict.fromkeys(INTEGERS, "i32"),
            },
            constants={"BLOCK": block},
            num_warps=warps,
            grid=(-(-launch.columns("source") // block), launch.num_rows),
        ),
    )
