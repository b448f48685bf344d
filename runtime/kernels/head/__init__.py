"""head(eps): logits[S,V] = rmsnorm(last[S,H]) * norm[H] times w[V,H]^T. The card's format is that of `w`."""

from firmtoken.compiler.cards import KernelCard, planned_gpu_card
from firmtoken.runtime.kernels.linear import NVFP4_ROWS

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
        builds="firmtoken.runtime.kernels.linear.nvfp4_rows:head_builds",
        constants=NVFP4_ROWS,
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
