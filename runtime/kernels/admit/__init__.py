"""admit(num_experts): slots for a decode step's experts, with eviction of the least recently used.

table int32 [E] is slot or -1, lru int64 [n >= range] the step at which each slot of the layer's range `cache` was
last used; the next step is max(lru) + 1. slots int32 [T,k] are absolute slot numbers, -1 for padded pairs. Hits
refresh recency. A miss takes an empty slot of the range, else the least recently used one (lowest slot among
equals) that no expert of this launch uses; its former expert leaves the table. With batch.held, or without a
victim, it takes the next slot of `overflow` and the table stays. miss int32 [1+2E] = count, then (expert, slot)
pairs, in order of first use. Returns how many distinct experts were in their slots.
"""

from firmtoken.compiler.cards import KernelCard

CARDS = (
    KernelCard(
        op="admit",
        name="torch",
        entry="firmtoken.runtime.kernels.admit.reference:admit",
        phases=("decode",),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
        respects_holds=True,
    ),
    KernelCard(
        op="admit",
        name="triton",
        entry="",
        phases=("decode",),
        devices=("cuda",),
        formats=("bf16", "fp32"),
        rank=1,
        because="one block a layer, inside the captured step",
        status="planned",
        min_capability=(8, 0),
        requires=("triton",),
        respects_holds=True,
        builds="firmtoken.runtime.kernels.admit.step_slots:admit_builds",
        constants=(("warps", 8),),
        computed=(("early", "early_start"),),
    ),
)
