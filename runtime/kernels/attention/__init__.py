"""attention(num_q_heads, num_kv_heads, head_dim, gated, page_size, scale): causal attention over pages.

Per segment, row r at position p = start + r sees the keys and values of positions 0..p in kv[2, pages, page_size,
Hkv, D] through the segment's page table; query head h reads kv head h // (Hq / Hkv). o[T,Hq*D], times sigmoid of
the gate columns of `qkv` if gated. Padded rows give zeros. The card's format is that of `kv`.
"""

from firmtoken.compiler.cards import KernelCard

CARDS = (
    KernelCard(
        op="attention",
        name="torch_blocks",
        entry="firmtoken.runtime.kernels.attention.reference:attention",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="own softmax in blocks of 64 rows, memory bounded",
    ),
    KernelCard(
        op="attention",
        name="torch_sdpa",
        entry="firmtoken.runtime.kernels.attention.torch_sdpa:attention",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=2,
        because="torch's fused attention, builds a mask",
    ),
    KernelCard(
        op="attention",
        name="triton_split_kv",
        entry="",
        phases=("decode",),
        devices=("cuda",),
        formats=("bf16", "fp8"),
        rank=1,
        because="splits long sequences over all processors, no plan call a step",
        status="planned",
        min_capability=(8, 0),
        requires=("triton",),
        head_dims=(64, 128, 256),
        page_sizes=(16, 32, 64),
    ),
    KernelCard(
        op="attention",
        name="flashinfer_fa2",
        entry="",
        phases=("prefill",),
        devices=("cuda",),
        formats=("bf16", "fp8"),
        rank=1,
        because="FA2 templates, from capability 8.0 on",
        status="planned",
        min_capability=(8, 0),
        requires=("flashinfer",),
        head_dims=(64, 128, 256),
        page_sizes=(16, 32, 64),
        capturable=False,
    ),
    KernelCard(
        op="attention",
        name="flashinfer_fa3",
        entry="",
        phases=("prefill",),
        devices=("cuda",),
        formats=("bf16", "fp8"),
        rank=0,
        because="fastest where it exists, only 9.0",
        status="planned",
        min_capability=(9, 0),
        requires=("flashinfer",),
        head_dims=(64, 128, 256),
        page_sizes=(16, 32, 64),
        max_capability=(9, 0),
        capturable=False,
    ),
)
