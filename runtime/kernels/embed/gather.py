"""Rows of a table by token id: the Triton function that `embed` launches."""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch

INTEGERS = ("width", "hid_stride")


# Integers are not specialised: what is compiled depends on the constants alone, and is known before any launch.
@triton.jit(do_not_specialize=INTEGERS)
def gather_rows(table_ptr, hid_ptr, token_ids_ptr, width, hid_stride, BLOCK: tl.constexpr):
    """Program (b, t): the b-th BLOCK columns of row t."""
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(1)
    token = tl.load(token_ids_ptr + row).to(tl.int64)
    values = tl.load(table_ptr + token * width + column, mask=column < width)
    at = hid_ptr + row.to(tl.int64) * hid_stride + column
    tl.store(at, values.to(hid_ptr.dtype.element_ty), mask=column < width)


def embed_builds(launch: Launch, *, block: int, warps: int) -> tuple[Build, ...]:
    """The one form."""
    arguments = {
        "table_ptr": launch.pointer("table"),
        "hid_ptr": launch.pointer("hid"),
        "token_ids_ptr": "*i32",
        **dict.fromkeys(INTEGERS, "i32"),
    }
    grid = (-(-launch.columns("hid") // block), launch.num_rows)
    return (
        Build(
            name="rows",
            function=gather_rows,
            arguments=arguments,
            constants={"BLOCK": block},
            num_warps=warps,
            grid=grid,
        ),
    )
