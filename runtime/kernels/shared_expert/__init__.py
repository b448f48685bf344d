"""shared_expert: the expert that every row visits; no constants.

s[T,H] = sigmoid(h gate[1,H]^T) * down[H,I] (silu(gate rows of gate_up) * (up rows)), gate_up[2I,H] with the gate
first.
"""

from firmtoken.compiler.cards import KernelCard, planned_gpu_card

CARDS = (
    KernelCard(
        op="shared_expert",
        name="torch",
        entry="firmtoken.runtime.kernels.shared_expert.reference:shared_expert",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    planned_gpu_card(
        op="shared_expert",
        name="triton_nvfp4",
        phases=("decode", "prefill"),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights in registers",
    ),
    planned_gpu_card(
        op="shared_expert",
        name="triton_bf16",
        phases=("decode", "prefill"),
        formats=("bf16",),
        rank=1,
        because="one launch a half",
    ),
)
