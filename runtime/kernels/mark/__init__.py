"""mark: nothing; a place for drops and events."""

from firmtoken.compiler.cards import KernelCard, gpu_card

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
    gpu_card(
        op="mark",
        name="none_cuda",
        entry="firmtoken.runtime.kernels.mark.reference:mark",
        phases=("decode", "prefill"),
        formats=("bf16", "fp32"),
        rank=1,
        because="there is nothing to do",
        requires=(),
    ),
)
