"""row_norm_rope_kv(num_q_heads, num_kv_heads, head_dim, rotary_dim, rope_theta, eps, page_size).

Reads qkv[T, Hq*D + 2*Hkv*D]: query rows, key rows, value rows. All of q is RMS-normalised at once with q_norm[Hq*D]
(the mean runs over every head), all of k with k_norm[Hkv*D]; then as in qk_norm_rope_kv: the first `rotary_dim` columns
of each head are rotated, q[T,Hq*D] is written, and k and v to batch.token_slots of kv[2, pages, page_size, Hkv, D].
"""

from firmtoken.compiler.cards import KernelCard, gpu_card

CARDS = (
    KernelCard(
        op="row_norm_rope_kv",
        name="torch",
        entry="firmtoken.runtime.kernels.row_norm_rope_kv.reference:row_norm_rope_kv",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    gpu_card(
        op="row_norm_rope_kv",
        name="triton",
        entry="firmtoken.runtime.kernels.row_norm_rope_kv.triton_heads:row_norm_rope_kv",
        phases=("decode", "prefill"),
        formats=("bf16", "fp8", "fp32"),
        rank=1,
        because="norm, rotation and page write in one pass",
        builds="firmtoken.runtime.kernels.head_writes:row_norm_builds",
        constants=(("warps", 4),),
        computed=(("early", "early_start"),),
    ),
)
