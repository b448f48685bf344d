"""sample: tokens int64 [S] from logits[S,V], row s as batch.draws[s] says; no constants (D19).

A temperature below MIN_TEMPERATURE = 1e-5 is arg-max, the lowest id on ties. Else the top_k largest (lowest ids among
equals, 0 keeps all); of the fp64 softmax of (logits - max) / temperature the shortest run of largest that reaches
top_p; those of at least min_p times the largest. At least the largest is kept. The token is where the cumulative
sum, in order of id, exceeds u times the total: u = Philox of (seed, position), independent of the batch.

No token is drawn from a row whose largest logit is no finite number (a NaN, an infinity, or nothing above -infinity):
it gets NO_TOKEN.
"""

from firmtoken.compiler.cards import KernelCard, gpu_card

CARDS = (
    KernelCard(
        op="sample",
        name="torch",
        entry="firmtoken.runtime.kernels.sample.reference:sample",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    gpu_card(
        op="sample",
        name="triton",
        entry="firmtoken.runtime.kernels.sample.triton_digits:sample",
        workspace="sample",
        phases=("decode", "prefill"),
        formats=("bf16", "fp32"),
        rank=1,
        because="on the device, no host between steps",
        builds="firmtoken.runtime.kernels.sample.digit_builds:sample_builds",
        constants=(("chunk", 2048), ("warps", 4)),
        computed=(("early", "early_start"),),
    ),
)
