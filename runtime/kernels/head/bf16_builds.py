"""What `head` with bf16 weights is compiled to."""

from dataclasses import replace

from firmtoken.compiler.operands import Operand
from firmtoken.runtime.kernels.add_norm.rows import add_norm_builds
from firmtoken.runtime.kernels.builds import Build, Launch
from firmtoken.runtime.kernels.linear.plain_builds import product_builds


def head_builds(
    launch: Launch, *, eps: float, warps: int, early: int, **tuning: int
) -> tuple[Build, ...]:
    """The norm, and the product of normed rows."""
    last = launch.operands["last"]
    normed = {"hid": last, "h": Operand(dtype=last.dtype, shape=last.shape)}
    norm = replace(launch, operands={**normed, "norm": launch.operands["norm"]})
    return (
        *add_norm_builds(norm, eps=eps, warps=warps, early=early),
        *product_builds(launch, early=early, **tuning),
    )
