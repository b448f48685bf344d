"""restore: one layer's states from the host, or zero; no constants.

For each (snapshot slot or -1, live, shadow) of batch.moves: that row of snaps (layout as in `snapshot`), or zeros,
to both slots. `snaps` is absent where a plan keeps no snapshots; every move is -1 then.
"""

from firmtoken.compiler.cards import KernelCard

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
    KernelCard(
        op="restore",
        name="copy_engine",
        entry="",
        phases=("decode", "prefill"),
        devices=("cuda",),
        formats=("bf16", "fp32"),
        rank=1,
        because="DMA from pinned memory",
        status="planned",
        min_capability=(8, 0),
        requires=(),
    ),
)
