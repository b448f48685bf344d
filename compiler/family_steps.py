"""Runs of primitive steps that several families are built of."""

from firmtoken.compiler.family import primitive
from firmtoken.compiler.program import Step

Steps = tuple[Step, ...]


def mixer_layer(body: Steps) -> Steps:
    """norm, `body` from `h` to `y`, residual, norm."""
    return (
        primitive("norm", "hid", writes="h", weights="norm:in_norm[l]", rows="tile"),
        *body,
        primitive("add", "hid y", writes="hid", rows="tile"),
        primitive("norm", "hid", writes="h", weights="norm:post_norm[l]", rows="tile"),
    )


HEAD_NORM: Steps = (
    primitive("q_norm", "qkv", writes="qn", weights="q_norm:q_norm[l]", rows="tile"),
    primitive("k_norm", "qkv", writes="kn", weights="k_norm:k_norm[l]", rows="tile"),
)
"""Each head of q and k has a norm of its own; all share one weight."""
ROW_NORM: Steps = (
    primitive("q_row_norm", "qkv", writes="qn", weights="q_norm:q_norm[l]", rows="tile"),
    primitive("k_row_norm", "qkv", writes="kn", weights="k_norm:k_norm[l]", rows="tile"),
)
"""One norm over all heads of q together, one over all of k."""


def attention_body(norms: Steps, *, gated: bool) -> Steps:
    """Projections, `norms` of q and k, rotation, keys and values to their pages, attention, output projection.

    `gated`: whether the projection of q holds a gate for attention's output.
    """
    operands = "q qkv kv:kv[l,o]" if gated else "q kv:kv[l,o]"
    return (
        primitive("linear", "x:h", writes="y:qkv", weights="w:qkv_proj[l]", rows="tile"),
        *norms,
        primitive("rope", "qn kn", writes="q kr", rows="tile"),
        primitive("kv_write", "kr qkv kv:kv[l,o]", writes="kv:kv[l,o]", rows="tile"),
        primitive("attention", operands, writes="o:attn_o", rows="tile"),
        primitive("linear", "x:attn_o", writes="y", weights="w:attn_out[l]", rows="tile"),
    )


SOFTMAX_ROUTE: Steps = (
    primitive("router", "h", writes="scores", weights="router:router[l]", rows="tokens"),
    primitive("top_k", "scores", writes="ids wts", rows="tokens"),
)
"""Softmax over all experts, the k largest, renormalised."""
SIGMOID_ROUTE: Steps = (
    primitive("router", "h", writes="scores", weights="router:router[l]", rows="tokens"),
    primitive(
        "biased_top_k", "scores", writes="ids wts", weights="bias:router_bias[l]", rows="tokens"
    ),
)
"""A sigmoid for each expert; a bias helps to choose the k, and has no part in their weights."""


def experts(route: Steps, shared: Steps = ()) -> Steps:
    """Routing, routed experts, the shared expert from `h` to `s` where there is one, their sum."""
    summed = "rows wts s" if shared else "rows wts"
    return (
        *route,
        primitive("gate_up", "x:h ids", writes="gu", rows="pairs"),
        primitive("silu_mul", "gu", writes="a", rows="pairs"),
        primitive("moe_down", "a ids", writes="rows", rows="pairs"),
        *shared,
        primitive("weighted_sum", summed, writes="moe", rows="tokens"),
        primitive("residual", "moe hid", writes="hid", rows="tokens"),
    )


def head() -> Steps:
    """Final norm and vocabulary projection."""
    return (
        primitive("final_norm", "last", writes="ln", weights="norm:final_norm", rows="sequences"),
        primitive("lm_head", "ln", writes="logits", weights="w:lm_head", rows="sequences"),
    )
