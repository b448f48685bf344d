"""head(eps): logits[S,V] = rmsnorm(last[S,H]) * norm[H] times w[V,H]^T. The card's format is that of `w`."""

from firmtoken.compiler.cards import KernelCard

CARDS = (
    KernelCard(
        op="head",
        name="torch",
        entry="firmtoken.runtime.kernels.head.reference:head",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    KernelCard(
        op="head",
        name="triton_nvfp4",
        entry="",
        phases=("decode", "prefill"),
        devices=("cuda",),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights in registers",
        status="planned",
        min_capability=(8, 0),
        requires=("triton",),
    ),
    KernelCard(
        op="head",
        name="cublas_bf16",
        entry="",
        phases=("decode", "prefill"),
        devices=("cuda",),
        formats=("bf16",),
        rank=1,
        because="the vendor's own",
        status="planned",
        min_capability=(8, 0),
        requires=(),
    ),
)
