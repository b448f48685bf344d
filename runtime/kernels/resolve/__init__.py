"""resolve: where each expert of a layer is, or will be once `fetch` has run; no constants.

table int32 [E] is slot or -1. map int32 [E] = table, missing experts pointing at consecutive slots of the range
`staged`; miss int32 [1+2E] = count, then (expert, slot) pairs. With ids[T,k] only routed experts count as missing.
With `wave` they come in parts of staged.count, in order of experts: map and miss have those of part `wave`, -1 stands
for all others, and what is in table belongs to wave 0. Without, all must fit. Does not touch recency (D7).
"""

from firmtoken.compiler.cards import KernelCard, planned_gpu_card

CARDS = (
    KernelCard(
        op="resolve",
        name="torch",
        entry="firmtoken.runtime.kernels.resolve.reference:resolve",
        phases=("prefill",),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    planned_gpu_card(
        op="resolve",
        name="triton",
        phases=("prefill",),
        formats=("bf16", "fp32"),
        rank=1,
        because="one block, on the device",
        builds="firmtoken.runtime.kernels.resolve.layer_slots:resolve_builds",
        constants=(("warps", 4),),
    ),
)
