"""The residual sum and the RMS norm of a row in one program (Triton, no torch)."""

# mypy: disable-error-code="assignment, no-untyped-def, untyped-decorator"
# A Triton function has no types, and its tuples grow while it is compiled.

import triton
import triton.language as tl

from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.early_start import start_next_after_last


@triton.jit
def add_norm_row(
    hid_ptr,
    y_ptr,
    h_ptr,
    norm_ptr,
    eps,
    HIDDEN: tl.constexpr,
    ADDED: tl.constexpr,
    NORMED: tl.constexpr,
    EARLY: tl.constexpr,
):
    """hid[T, HIDDEN] += y where ADDED; h = hid * rsqrt(mean(hid^2) + eps) * norm where NORMED; any float types.

    The norm is of hid as it is stored. Program (row); h may be y. EARLY (`early_start.py`): the norm must be older than
    the launch before.
    """
    column = tl.arange(0, triton.next_power_of_2(HIDDEN))
    inside = column < HIDDEN
    start = tl.program_id(0).to(tl.int64) * HIDDEN
    if NORMED:
        norm = tl.load(norm_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if EARLY:
        start_next_after_last()
    hid = tl.load(hid_ptr + start + column, mask=inside, other=0.0)
    if ADDED:
        added = tl.load(y_ptr + start + column, mask=inside, other=0.0)
        hid = (hid.to(tl.float32) + added.to(tl.float32)).to(hid_ptr.dtype.element_ty)
        tl.store(hid_ptr + start + column, hid, mask=inside)
    if NORMED:
        wide = hid.to(tl.float32)
        scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / HIDDEN + eps)
        tl.store(
            h_ptr + start + column, (wide * scale * norm).to(h_ptr.dtype.element_ty), mask=inside
        )


def add_norm_builds(launch: Launch, *, eps: float, warps: int, early: int) -> tuple[Build, ...]:
    """The one form that these operands ask for; `eps` is an argument."""
    added, normed = "y" in launch.operands, "h" in launch.operands
    # Pointers that are not read or written are those of hid, as the launch gives them.
    pointers = {
        f"{name}_ptr": launch.pointer(name if name in launch.operands else "hid")
        for name in ("hid", "y", "h", "norm")
    }
    return (
        Build(
            name=" and ".join(("sum",) * added + ("norm",) * normed),
            function=add_norm_row,
            arguments={**pointers, "eps": "fp32"},
            constants={
                "HIDDEN": launch.columns("hid"),
                "ADDED": added,
                "NORMED": normed,
                "EARLY": bool(early),
            },
            num_warps=warps,
            grid=(launch.num_rows,),
        ),
    )
