"""copy: target[t] = source[s] for each (s, t) of batch.copies; no constants."""

from firmtoken.compiler.cards import KernelCard, gpu_card

CARDS = (
    KernelCard(
        op="copy",
        name="torch",
        entry="firmtoken.runtime.kernels.copy.reference:copy",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    gpu_card(
        op="copy",
        name="triton",
        entry="firmtoken.runtime.kernels.copy.triton_pairs:copy",
        phases=("decode", "prefill"),
        formats=("bf16", "fp32"),
        rank=1,
        because="one launch for all rows",
        builds="firmtoken.runtime.kernels.copy.pair_rows:copy_builds",
        constants=(("block", 1024), ("warps", 4)),
    ),
)
