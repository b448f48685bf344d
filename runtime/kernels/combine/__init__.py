"""combine: hid[T,H] += sum over j of wts[T,k] * rows[T*k,H], + s[T,H] where given; no constants."""

from firmtoken.compiler.cards import KernelCard

CARDS = (
    KernelCard(
        op="combine",
        name="torch",
        entry="firmtoken.runtime.kernels.combine.reference:combine",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    KernelCard(
        op="combine",
        name="triton",
        entry="",
        phases=("decode", "prefill"),
        devices=("cuda",),
        formats=("bf16", "fp32"),
        rank=1,
        because="one pass, fixed order of the sum",
        status="planned",
        min_capability=(8, 0),
        requires=("triton",),
    ),
)
