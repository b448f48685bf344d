"""copy: target[t] = source[s] for each (s, t) of batch.copies; no constants."""

from firmtoken.compiler.cards import KernelCard

CARDS = (
    KernelCard(
        op="copy",
        name="torch",
        entry="firmtoken.runtime.kernels.copy.reference:copy",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    KernelCard(
        op="copy",
        name="triton",
        entry="",
        phases=("decode", "prefill"),
        devices=("cuda",),
        formats=("bf16", "fp32"),
        rank=1,
        because="one launch for all rows",
        status="planned",
        min_capability=(8, 0),
        requires=("triton",),
    ),
)
