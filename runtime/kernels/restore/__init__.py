"""restore: one layer's states from the host, or zero; no constants.

For each (snapshot slot or -1, live, shadow) of batch.moves: that row of snaps (layout as in `snapshot`), or zeros,
to both slots. `snaps` is absent where a plan keeps no snapshots; every move is -1 then.
"""

from firmtoken.compiler.cards import KernelCard, planned_gpu_card

CARDS = (
    KernelCard(
        op="restore",
        name="torch",
        entry="firmtoken.runtime.kernels.restore.reference:restore",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    planned_gpu_card(
        op="restore",
        name="copy_engine",
        phases=("decode", "prefill"),
        formats=("bf16", "fp32"),
        rank=1,
        because="DMA from pinned memory",
        requires=(),
    ),
)
