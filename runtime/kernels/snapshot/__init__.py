"""snapshot: one layer's states to the host; no constants.

For each (state slot, snapshot slot) of batch.moves: the conv state's elements, then the recurrent state's, to that
row of snaps fp32 [snapshot slots, conv elements + recurrent elements].
"""

from firmtoken.compiler.cards import KernelCard, gpu_card

CARDS = (
    KernelCard(
        op="snapshot",
        name="torch",
        entry="firmtoken.runtime.kernels.snapshot.reference:snapshot",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    gpu_card(
        op="snapshot",
        name="copy_engine",
        entry="firmtoken.runtime.kernels.snapshot.copy_engine:snapshot",
        phases=("decode", "prefill"),
        formats=("bf16", "fp32"),
        rank=1,
        because="DMA to pinned memory",
        requires=(),
    ),
)
