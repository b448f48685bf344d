"""route(num_experts_per_token): which experts a row goes to.

logits = h[T,H] router[E,H]^T; softmax over all experts, the k largest, divided by their sum. ids int32 [T,k],
largest weight first, and wts fp32 [T,k]; rows from batch.real_rows on get id -1 and weight 0.
"""

from firmtoken.compiler.cards import KernelCard, planned_gpu_card

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
    planned_gpu_card(
        op="route",
        name="triton",
        phases=("decode",),
        formats=("bf16", "fp32"),
        rank=1,
        because="logits, softmax and top-k in one launch",
        builds="firmtoken.runtime.kernels.route.top_k:route_builds",
        constants=(("experts_at_once", 2),),
        computed=(("early", "early_start"),),
    ),
    planned_gpu_card(
        op="route",
        name="triton_tiles",
        phases=("prefill",),
        formats=("bf16", "fp32"),
        rank=1,
        because="reads the router once for a tile of rows",
    ),
)
