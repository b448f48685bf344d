"""head(eps): logits[S,V] = rmsnorm(last[S,H]) * norm[H] times w[V,H]^T. The card's format is that of `w`."""

from firmtoken.compiler.cards import KernelCard, gpu_card, multiples
from firmtoken.runtime.kernels.linear import PLAIN_PRODUCTS, WORD_COLUMNS

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
    gpu_card(
        op="head",
        name="triton_nvfp4",
        entry="firmtoken.runtime.kernels.head.triton_nvfp4:head",
        phases=("decode", "prefill"),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights in registers",
        builds="firmtoken.runtime.kernels.linear.nvfp4_builds:head_builds",
        constants=NVFP4_PRODUCTS,
        computed=(("early", "early_start"),),
    ),
    gpu_card(
        op="head",
        name="triton_bf16",
        entry="firmtoken.runtime.kernels.head.triton_bf16:head",
        phases=("decode", "prefill"),
        formats=("bf16",),
        rank=1,
        because="norm first, then the product that is tuned for few rows",
        builds="firmtoken.runtime.kernels.head.bf16_builds:head_builds",
        constants=(*PLAIN_PRODUCTS, ("warps", 8)),
        computed=(("early", "early_start"),),
        workspace="head",
        limits=multiples(WORD_COLUMNS, ("hidden_size",)),
    ),
)
