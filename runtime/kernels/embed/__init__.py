"""embed: rows of the embedding table.

hid[T,H] = table[V,H] at batch.token_ids; no constants.
"""

from firmtoken.compiler.cards import KernelCard, gpu_card

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
    gpu_card(
        op="embed",
        name="triton",
        entry="firmtoken.runtime.kernels.embed.triton_gather:embed",
        phases=("decode", "prefill"),
        formats=("bf16", "fp32"),
        rank=1,
        because="gathers rows from device or pinned memory",
        builds="firmtoken.runtime.kernels.embed.gather:embed_builds",
        constants=(("block", 1024), ("warps", 4)),
    ),
)
