"""embed: rows of the embedding table.

hid[T,H] = table[V,H] at batch.token_ids; no constants.
"""

from firmtoken.compiler.cards import KernelCard

CARDS = (
    KernelCard(
        op="embed",
        name="torch",
        entry="firmtoken.runtime.kernels.embed.reference:embed",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    KernelCard(
        op="embed",
        name="triton",
        entry="",
        phases=("decode", "prefill"),
        devices=("cuda",),
        formats=("bf16", "fp32"),
        rank=1,
        because="gathers rows from device or pinned memory",
        status="planned",
        min_capability=(8, 0),
        requires=("triton",),
    ),
)
