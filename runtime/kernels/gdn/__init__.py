"""gdn(num_key_heads, num_value_heads, key_head_dim, value_head_dim, conv_kernel, eps): the gated delta net.

u[T, 2*Hk*Dk + Hv*Dv (q, k, v) | Hv*Dv (z) | Hv (b) | Hv (a)]; conv[channels, kernel]; a_log, dt_bias[Hv]; norm[Dv].
Per segment it starts from the live slot's conv_state[slots, channels, kernel-1] (newest last) and
recurrent_state[slots, Hv, Dk, Dv], and leaves the new states there. Where segment.boundary > 0 the states after
that many rows also go to the shadow slot. o[T, Hv*Dv] is normalised per head and gated by silu(z); padded rows give
zeros.

Per value head: S <- exp(g) S; d = beta (v - S^T k); S <- S + k d^T; o = S^T q, with g = -exp(a_log) softplus(a +
dt_bias), beta = sigmoid(b), q and k of unit length, q times Dk^-0.5; value head j uses key head j // (Hv / Hk).
"""

from firmtoken.compiler.cards import KernelCard, SizeLimit, gpu_card

HEADS = (
    SizeLimit(sizes=("linear.key_head_dim",), one_of=(16, 32, 64, 128, 256)),
    SizeLimit(sizes=("linear.value_head_dim",), one_of=(32, 64, 128, 256)),
)
"""A program of `triton_chunk` has 32 columns of a head of values at once; a model has both kernels."""

CARDS = (
    KernelCard(
        op="gdn",
        name="torch_chunk",
        entry="firmtoken.runtime.kernels.gdn.torch_chunk:gdn",
        phases=("prefill",),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="64 rows at a time as matrix products",
    ),
    KernelCard(
        op="gdn",
        name="torch_recurrent",
        entry="firmtoken.runtime.kernels.gdn.torch_recurrent:gdn",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=2,
        because="row by row, exact for any rows",
    ),
    gpu_card(
        op="gdn",
        name="triton_chunk",
        entry="firmtoken.runtime.kernels.gdn.triton_chunk:gdn",
        phases=("prefill",),
        formats=("bf16",),
        rank=1,
        because="64 rows at a time on tensor cores, only the states one after another",
        workspace="mixer_tile",
        builds="firmtoken.runtime.kernels.gdn.chunk_builds:chunk_builds",
        constants=(
            ("columns", 32),
            ("convolve_warps", 8),
            ("prepare_warps", 8),
            ("state_warps", 4),
            ("read_warps", 8),
        ),
        computed=(
            ("stages", "gdn_stages"),
            ("sequences", "sequences"),
        ),
        limits=HEADS,
    ),
    gpu_card(
        op="gdn",
        name="triton_step",
        entry="firmtoken.runtime.kernels.gdn.triton_step:gdn",
        phases=("decode",),
        formats=("bf16", "fp32"),
        rank=1,
        because="conv and step in one launch, norm and gate in a second",
        builds="firmtoken.runtime.kernels.gdn.head_steps:gdn_builds",
        constants=(("columns", 16), ("warps", 2)),
        computed=(("early", "early_start"),),
        limits=HEADS,
    ),
)
