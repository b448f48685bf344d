"""qk_norm_rope_kv(num_q_heads, num_kv_heads, head_dim, rotary_dim, rope_theta, eps, gated, page_size).

Reads qkv[T, Hq*D*(2 if gated) + 2*Hkv*D]: query rows (per head q then gate, alternating), key rows, value rows.
Each head of q and k is RMS-normalised with q_norm[D], k_norm[D] (ready to multiply), then its first `rotary_dim`
columns are rotated, column i with i + rotary_dim/2, by position * rope_theta^(-2i/rotary_dim). Writes q[T,Hq*D],
and k and v to batch.token_slots of kv[2, pages, page_size, Hkv, D].
"""

from firmtoken.compiler.cards import KernelCard, gpu_card

CARDS = (
    KernelCard(
        op="qk_norm_rope_kv",
        name="torch",
        entry="firmtoken.runtime.kernels.qk_norm_rope_kv.reference:qk_norm_rope_kv",
        phases=("decode", "prefill"),
        devices=("cpu",),
        formats=("fp32",),
        rank=1,
        because="plain torch, the only one on this device",
    ),
    gpu_card(
        op="qk_norm_rope_kv",
        name="triton",
        entry="firmtoken.runtime.kernels.qk_norm_rope_kv.triton_heads:qk_norm_rope_kv",
        phases=("decode", "prefill"),
        formats=("bf16", "fp8", "fp32"),
        rank=1,
        because="norm, rotation and page write in one pass",
        builds="firmtoken.runtime.kernels.head_writes:qk_norm_builds",
        constants=(("warps", 4),),
        computed=(("early", "early_start"),),
    ),
)
