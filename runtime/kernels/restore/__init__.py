"""restore: one layer's states from the host, or zero; no constants.

For each (snapshot slot or -1, live, shadow) of batch.moves: that row of snaps (layout as in `snapshot`), or zeros,
to both slots. `snaps` is absent where a plan keeps no snapshots; every move is -1 then.
"""

from firmtoken.compiler.cards import KernelCard, gpu_card

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
    gpu_card(
        op="restore",
        name="triton",
        entry="firmtoken.runtime.kernels.restore.triton_slots:restore",
        phases=("decode", "prefill"),
        formats=("bf16",),
        rank=1,
        because="one launch for all sequences of a prompt's graph, reads pinned memory",
        builds="firmtoken.runtime.kernels.restore.slot_states:restore_builds",
        constants=(("block", 4096), ("warps", 8)),
        computed=(("conv_words", "conv_words"), ("recurrent_words", "recurrent_words")),
    ),
)
