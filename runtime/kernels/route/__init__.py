"""route(num_experts_per_token): which experts a row goes to.

logits = h[T,H] router[E,H]^T; softmax over all experts, the k largest, divided by their sum. ids int32 [T,k],
largest weight first, and wts fp32 [T,k]; rows from batch.real_rows on get id -1 and weight 0.
"""

from firmtoken.compiler.cards import KernelCard, gpu_card

CARDS = (
    KernelCard(
        op="route",
        name="torch",
        entry="firmtoken.runtime.kernels.route.reference:route",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    gpu_card(
        op="route",
        name="triton",
        entry="firmtoken.runtime.kernels.route.triton_top_k:route",
        workspace="route",
        phases=("decode",),
        formats=("bf16", "fp32"),
        rank=1,
        because="logits, softmax and top-k in one launch",
        builds="firmtoken.runtime.kernels.route.top_k:route_builds",
        constants=(("experts_at_once", 1),),
        computed=(("early", "early_start"),),
    ),
    gpu_card(
        op="route",
        name="triton_tiles",
        entry="firmtoken.runtime.kernels.route.triton_tiles:route",
        phases=("prefill",),
        formats=("bf16", "fp32"),
        rank=1,
        because="reads the router once for a tile of rows",
        builds="firmtoken.runtime.kernels.route.tile_top_k:tile_builds",
        constants=(("rows", 16), ("block", 64), ("warps", 4), ("stages", 3)),
    ),
)
