"""linear: y[T,N] = x[T,K] w[N,K]^T; no constants but a card's own. The card's format is that of `w`."""

from firmtoken.compiler.cards import KernelCard, below, gpu_card, multiples
from firmtoken.runtime.kernels.tile_shapes import ROW_TILES, STEP_COLUMNS

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
WORD_COLUMNS = 16
"""What a lane loads at once: columns of x and w are a multiple of it."""
MIXER_COLUMNS = (
    ("hidden_size",),
    ("num_q_heads", "head_dim"),
    ("linear.num_value_heads", "linear.value_head_dim"),
)
"""Of what mixers project from: the residual stream, and what their output projections get."""

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
    gpu_card(
        op="linear",
        name="triton_nvfp4",
        entry="firmtoken.runtime.kernels.linear.triton_nvfp4:linear",
        phases=("decode",),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights in registers, any capability",
        builds="firmtoken.runtime.kernels.linear.nvfp4_builds:linear_builds",
        constants=NVFP4_PRODUCTS,
        computed=(("early", "early_start"),),
    ),
    gpu_card(
        op="linear",
        name="triton_nvfp4_tiles",
        entry="firmtoken.runtime.kernels.linear.triton_nvfp4_tiles:linear",
        phases=("prefill",),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights once for a tile of rows, any capability",
        builds="firmtoken.runtime.kernels.linear.nvfp4_many:many_builds",
        constants=ROW_TILES,
        computed=(("large_stages", "large_tile_stages"), ("quads", "quads")),
        workspace="operand_order",
        limits=multiples(STEP_COLUMNS, *MIXER_COLUMNS),
    ),
    gpu_card(
        op="linear",
        name="triton_fp8",
        entry="firmtoken.runtime.kernels.linear.triton_fp8:linear",
        phases=("decode",),
        formats=("fp8",),
        rank=1,
        because="weight-only, each joined matrix keeps its scale, safe on every stream",
        builds="firmtoken.runtime.kernels.linear.plain_builds:product_builds",
        constants=PLAIN_PRODUCTS,
        computed=(("fp8_units", "fp8_units"), ("early", "early_start")),
        limits=multiples(WORD_COLUMNS, *MIXER_COLUMNS),
    ),
    gpu_card(
        op="linear",
        name="triton_fp8_tiles",
        entry="firmtoken.runtime.kernels.linear.triton_fp8_tiles:linear",
        phases=("prefill",),
        formats=("fp8",),
        rank=1,
        because="weight-only, decodes weights once for a tile of rows, safe on every stream",
        builds="firmtoken.runtime.kernels.linear.plain_many:many_builds",
        constants=(*ROW_TILES, ("large_step", 64), ("small_step", 128)),
        computed=(("large_stages", "large_tile_stages"), ("fp8_units", "fp8_units")),
        limits=(
            *multiples(STEP_COLUMNS, *MIXER_COLUMNS),
            *multiples(4, ("linear.num_value_heads",)),  # two bf16 rows each, stored eight at once
        ),
    ),
    gpu_card(
        op="linear",
        name="triton_bf16",
        entry="firmtoken.runtime.kernels.linear.triton_bf16:linear",
        phases=("decode",),
        formats=("bf16",),
        rank=2,
        because="tuned for few rows",
        builds="firmtoken.runtime.kernels.linear.plain_builds:product_builds",
        constants=PLAIN_PRODUCTS,
        computed=(("early", "early_start"),),
        limits=multiples(WORD_COLUMNS, *MIXER_COLUMNS),
    ),
    gpu_card(
        op="linear",
        name="cublas_bf16",
        entry="firmtoken.runtime.kernels.linear.cublas_bf16:linear",
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
