"""head(eps): logits[S,V] = rmsnorm(last[S,H]) * norm[H] times w[V,H]^T. The card's format is that of `w`."""

from firmtoken.compiler.cards import KernelCard, planned_gpu_card

NVFP4_PRODUCTS = (("few", 2), ("outputs", 8), ("unroll", 1), ("tile_outputs", 64))
"""As those of `linear`, for the largest weight of a model."""

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
    planned_gpu_card(
        op="head",
        name="triton_nvfp4",
        phases=("decode", "prefill"),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights in registers",
        builds="firmtoken.runtime.kernels.linear.nvfp4_builds:head_builds",
        constants=NVFP4_PRODUCTS,
    ),
    planned_gpu_card(
        op="head",
        name="cublas_bf16",
        phases=("decode", "prefill"),
        formats=("bf16",),
        rank=1,
        because="the vendor's own",
        requires=(),
        workspace="cublas",
    ),
)
