"""combine: hid[T,H] += sum over j of wts[T,k] * rows[T*k,H], + s[T,H] where given; no constants.

With `block` rows[T*k,B] has B of the H columns, from block * B on, and only those of hid and s take part.
"""

from firmtoken.compiler.cards import KernelCard, gpu_card

CARDS = (
    KernelCard(
        op="combine",
        name="torch",
        entry="firmtoken.runtime.kernels.combine.reference:combine",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    gpu_card(
        op="combine",
        name="triton",
        entry="firmtoken.runtime.kernels.combine.triton_rows:combine",
        phases=("decode",),
        formats=("bf16", "fp32"),
        rank=1,
        because="one pass, fixed order of the sum",
        builds="firmtoken.runtime.kernels.combine.rows:combine_builds",
        constants=(("columns", 256), ("warps", 2)),
        computed=(("early", "early_start"),),
    ),
    gpu_card(
        op="combine",
        name="triton_blocks",
        entry="firmtoken.runtime.kernels.combine.triton_blocks:combine",
        phases=("prefill",),
        formats=("bf16", "fp32"),
        rank=1,
        because="a block of columns at a time, fixed order of the sum",
        builds="firmtoken.runtime.kernels.combine.blocks:combine_builds",
        constants=(("rows_at_once", 4), ("columns", 512), ("warps", 4)),
    ),
)
