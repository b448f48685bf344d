"""linear: y[T,N] = x[T,K] w[N,K]^T; no constants. The card's format is that of `w`."""

from firmtoken.compiler.cards import KernelCard, planned_gpu_card

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
        phases=("decode", "prefill"),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights in registers, any capability",
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
    ),
    KernelCard(
        op="linear",
        name="scaled_mm_rowwise",
        entry="",
        phases=("decode", "prefill"),
        devices=("cuda",),
        formats=("fp8",),
        rank=2,
        because="tensor cores in FP8, activations rounded",
        status="planned",
        min_capability=(8, 9),
        requires=(),
        hazards=("H-01",),
    ),
)
