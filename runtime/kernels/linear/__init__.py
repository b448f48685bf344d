"""linear: y[T,N] = x[T,K] w[N,K]^T; no constants but a card's own. The card's format is that of `w`."""

from firmtoken.compiler.cards import KernelCard, below, planned_gpu_card

NO_FP8 = "this card has no FP8 units: they begin with compute capability 8.9"

NVFP4_PRODUCTS = (("few", 8), ("outputs", 4), ("unroll", 2), ("tile_outputs", 16))
"""Most rows that go by rows, outputs of a program, blocks that a lane has in flight for each of them, and outputs of a
program where tensor cores take more rows: NOTES.md says why."""

PLAIN_PRODUCTS = (
    ("few", 4),
    ("outputs", 2),
    ("unroll", 4),
    ("tile_outputs", 32),
    ("tile_warps", 4),
    ("block", 128),
    ("stages", 5),
)
"""Most rows that go by rows, and how these and tiles of more are cut (`launch_products.py`): NOTES.md says why."""

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
        builds="firmtoken.runtime.kernels.linear.nvfp4_builds:linear_builds",
        constants=NVFP4_PRODUCTS,
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
        phases=("decode",),
        formats=("fp8",),
        rank=1,
        because="weight-only, each joined matrix keeps its scale, safe on every stream",
        builds="firmtoken.runtime.kernels.linear.plain_builds:product_builds",
        constants=PLAIN_PRODUCTS,
        computed=(("fp8_units", "fp8_units"),),
    ),
    planned_gpu_card(
        op="linear",
        name="triton_fp8_tiles",
        phases=("prefill",),
        formats=("fp8",),
        rank=1,
        because="weight-only, decodes weights once for a tile of rows, safe on every stream",
    ),
    planned_gpu_card(
        op="linear",
        name="triton_bf16",
        phases=("decode",),
        formats=("bf16",),
        rank=2,
        because="tuned for few rows",
        builds="firmtoken.runtime.kernels.linear.plain_builds:product_builds",
        constants=PLAIN_PRODUCTS,
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
