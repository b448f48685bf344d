"""route_sigmoid(num_experts_per_token): which experts a row goes to, each scored by itself.

score = sigmoid(h[T,H] router[E,H]^T); the k experts with the largest score + bias[E], weighted by their scores
divided by the sum of those k: the bias chooses and does not weigh. ids int32 [T,k], most wanted first, and wts fp32
[T,k]; rows from batch.real_rows on get id -1 and weight 0. The card's format is that of `router`; `bias` is fp32.
"""

from firmtoken.compiler.cards import KernelCard, gpu_card

CARDS = (
    KernelCard(
        op="route_sigmoid",
        name="torch",
        entry="firmtoken.runtime.kernels.route_sigmoid.reference:route_sigmoid",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    gpu_card(
        op="route_sigmoid",
        name="triton",
        entry="firmtoken.runtime.kernels.route_sigmoid.triton_top_k:route_sigmoid",
        workspace="route",
        phases=("decode",),
        formats=("bf16", "fp32"),
        rank=1,
        because="scores in fp32, bias and top-k in one launch",
        builds="firmtoken.runtime.kernels.route.top_k:route_builds",
        constants=(("experts_at_once", 1),),
        computed=(("early", "early_start"),),
    ),
    gpu_card(
        op="route_sigmoid",
        name="triton_tiles",
        entry="firmtoken.runtime.kernels.route_sigmoid.triton_tiles:route_sigmoid",
        phases=("prefill",),
        formats=("bf16", "fp32"),
        rank=1,
        because="reads the router once for a tile of rows",
        builds="firmtoken.runtime.kernels.route.tile_top_k:tile_builds",
        constants=(("rows", 16), ("block", 64), ("warps", 4), ("stages", 3)),
    ),
)
