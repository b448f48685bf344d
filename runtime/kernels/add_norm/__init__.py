"""add_norm(eps): the residual sum and the next RMS norm.

hid[T,H] += y[T,H] where `y` is given; h[T,H] = hid * rsqrt(mean(hid^2) + eps) * norm[H] where `h` is given. `norm`
is ready to multiply: the loader has added 1 where the checkpoint is zero-centred.
"""

from firmtoken.compiler.cards import KernelCard

CARDS = (
    KernelCard(
        op="add_norm",
        name="torch",
        entry="firmtoken.runtime.kernels.add_norm.reference:add_norm",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
        in_place=(("y", "h"),),
    ),
    KernelCard(
        op="add_norm",
        name="triton",
        entry="firmtoken.runtime.kernels.add_norm.triton_rows:add_norm",
        phases=("decode", "prefill"),
        devices=("cuda",),
        formats=("bf16", "fp32"),
        rank=1,
        because="sum and norm in one pass",
        min_capability=(8, 0),
        requires=("triton",),
        in_place=(("y", "h"),),
        builds="firmtoken.runtime.kernels.add_norm.rows:add_norm_builds",
        constants=(("warps", 8),),
        computed=(("early", "early_start"),),
    ),
)
