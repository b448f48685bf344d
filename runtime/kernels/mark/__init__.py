"""mark: nothing; a place for drops and events."""

from firmtoken.compiler.cards import KernelCard

CARDS = (
    KernelCard(
        op="mark",
        name="none",
        entry="firmtoken.runtime.kernels.mark.reference:mark",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="there is nothing to do",
    ),
    KernelCard(
        op="mark",
        name="none_cuda",
        entry="",
        phases=("decode", "prefill"),
        devices=("cuda",),
        formats=("bf16", "fp32"),
        rank=1,
        because="there is nothing to do",
        status="planned",
        min_capability=(8, 0),
        requires=(),
    ),
)
