"""fetch: copies the experts that `miss` lists from the layer's bank to their slots.

bank uint8 [E, slot_bytes]; miss int32 [1+2E] = count, then (expert, slot) pairs with absolute slot numbers. The
operands `staged`, `cache`, `overflow` (at least one) name ranges of one arena. Returns the bytes moved.
"""

from firmtoken.compiler.cards import KernelCard, planned_gpu_card

CARDS = (
    KernelCard(
        op="fetch",
        name="torch",
        entry="firmtoken.runtime.kernels.fetch.reference:fetch",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32", "nvfp4"),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    planned_gpu_card(
        op="fetch",
        name="triton_gather",
        phases=("decode", "prefill"),
        formats=("bf16", "nvfp4"),
        rank=1,
        because="the device reads pinned memory by the list, no host",
        builds="firmtoken.runtime.kernels.fetch.listed_slots:fetch_builds",
        constants=(("block", 4096), ("programs", 32), ("warps", 8)),
        computed=(("early", "early_start"),),
    ),
)
