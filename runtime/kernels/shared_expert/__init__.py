"""shared_expert: the expert that every row visits; no constants.

s[T,H] = sigmoid(h gate[1,H]^T) * down[H,I] (silu(gate rows of gate_up) * (up rows)), gate_up[2I,H] with the gate
first.
"""

from firmtoken.compiler.cards import KernelCard

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
    KernelCard(
        op="shared_expert",
        name="triton_nvfp4",
        entry="",
        phases=("decode", "prefill"),
        devices=("cuda",),
        formats=("nvfp4",),
        rank=1,
        because="decodes weights in registers",
        status="planned",
        min_capability=(8, 0),
        requires=("triton",),
    ),
    KernelCard(
        op="shared_expert",
        name="triton_bf16",
        entry="",
        phases=("decode", "prefill"),
        devices=("cuda",),
        formats=("bf16",),
        rank=1,
        because="one launch a half",
        status="planned",
        min_capability=(8, 0),
        requires=("triton",),
    ),
)
