"""linear: y[T,N] = x[T,K] w[N,K]^T; no constants but a card's own. The card's format is that of `w`."""

from firmtoken.compiler.cards import KernelCard, below, planned_gpu_card

NO_FP8 = "this card has no FP8 units: they begin with compute capability 8.9"

NVFP4_ROWS = (("outputs", 4), ("unroll", 2))
"""Outputs of a program, words that a lane has in flight for each of them: NOTES.md says why."""

CARDS = (
    KernelCard(
        op="linear",
        name="torch",
        entry="firmtoken.runtime.kernels.linear.reference:linear",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    planned_gpu_card(
        op="linear",
        name="triton_nvfp4",
        phases=("decode",),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights in registers, any capability",
        builds="firmtoken.runtime.kernels.linear.nvfp4_rows:linear_builds",
        constants=NVFP4_ROWS,
    ),
    planned_gpu_card(
        op="linear",
        name="triton_nvfp4_tiles",
        phases=("prefill",),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights once for a tile of rows, any capability",
    ),
    planned_gpu_card(
        op="linear",
        name="triton_fp8",
        phases=("decode", "prefill"),
        formats=("fp8",),
        rank=1,
        because="weight-only, one scale a row, safe on every stream",
    ),
    planned_gpu_card(
        op="linear",
        name="triton_bf16",
        phases=("decode", "prefill"),
        formats=("bf16",),
        rank=2,
        because="tuned for few rows",
    ),
    planned_gpu_card(
        op="linear",
        name="cublas_bf16",
        phases=("decode", "prefill"),
        formats=("bf16",),
        rank=1,
        because="the vendor's own, best from 16 rows",
        requires=(),
        workspace="cublas",
    ),
    KernelCard(
        op="linear",
        name="scaled_mm_tensorwise",
        entry="",
        phases=("decode", "prefill"),
        devices=("cuda",),
        formats=("fp8",),
        rank=2,
        because="tensor cores in FP8, one launch a part, activations rounded",
        status="planned",
        workspace="cublas",
        excluded=(below((8, 9), NO_FP8),),
    ),
    KernelCard(
        op="linear",
        name="scaled_mm_rowwise",
        entry="",
        phases=("decode", "prefill"),
        devices=("cuda",),
        formats=("fp8",),
        rank=3,
        because="tensor cores in FP8, one launch for all parts, activations rounded",
        status="planned",
        workspace="cublas",
        excluded=(below((8, 9), NO_FP8),),
        hazards=("H-01", "H-02", "H-03"),
    ),
)
