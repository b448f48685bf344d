"""Keyword arguments that geometry fixes for every launch of an op."""

from firmtoken.compiler.facts import CacheChoice, ModelFacts
from firmtoken.compiler.prescribed_routes import CONVERSATION
from firmtoken.schema.model import Geometry

Constants = dict[str, int | float | str]


def kernel_constants(
    op: str, geometry: Geometry, facts: ModelFacts, cache: CacheChoice
) -> Constants:
    """Constants of `op`; empty for ops that geometry does not concern."""
    gated = int(facts.gated_attention)
    eps = geometry.rms_norm_eps
    heads: Constants = {
        "num_q_heads": geometry.num_q_heads,
        "num_kv_heads": geometry.num_kv_heads,
        "head_dim": geometry.head_dim,
    }
    rotated: Constants = {
        **heads,
        "rotary_dim": geometry.rotary_dim,
        "rope_theta": geometry.rope_theta,
        "eps": eps,
    }
    experts: Constants = {
        "hidden_size": geometry.hidden_size,
        "expert_width": geometry.moe_intermediate_size,
        "num_experts_per_token": geometry.num_experts_per_token,
    }
    by_op: dict[str, Constants] = {
        "add_norm": {"eps": eps},
        "qk_norm_rope_kv": {**rotated, "gated": gated, "page_size": cache.page_size},
        "row_norm_rope_kv": {**rotated, "page_size": cache.page_size},
        "attention": {
            **heads,
            "gated": gated,
            "page_size": cache.page_size,
            "scale": geometry.head_dim**-0.5,
        },
        "gdn": _gdn_constants(geometry),
        "route": {"num_experts_per_token": geometry.num_experts_per_token},
        "route_sigmoid": {"num_experts_per_token": geometry.num_experts_per_token},
        "prescribe": {"conversation": CONVERSATION},
        "admit": {"num_experts": geometry.num_experts},
        "moe_gate_up": experts,
        "moe_down": experts,
        "head": {"eps": eps},
    }
    return dict(by_op.get(op, {}))


def _gdn_constants(geometry: Geometry) -> Constants:
    linear = geometry.linear
    if linear is None:
        return {}
    return {
        "num_key_heads": linear.num_key_heads,
        "num_value_heads": linear.num_value_heads,
        "key_head_dim": linear.key_head_dim,
        "value_head_dim": linear.value_head_dim,
        "conv_kernel": linear.conv_kernel,
        "eps": geometry.rms_norm_eps,
    }
