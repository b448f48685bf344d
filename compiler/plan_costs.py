"""`Costs` and `Residency` of a finished plan: what `speed.py` asks, read from the plan instead of from the passes."""

from firmtoken.compiler.facts import ModelFacts
from firmtoken.compiler.machine import Machine
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundStep
from firmtoken.compiler.speed import Costs, Residency
from firmtoken.compiler.unroll import unroll


def plan_costs(machine: Machine, facts: ModelFacts, plan: Plan) -> Costs:
    """Costs of the plan's layout on this machine."""
    decode = unroll(plan.programs.decode, facts.layer_kinds)
    return Costs(
        machine=machine,
        captured=plan.programs.decode.captured,
        overlaps=plan.streams.layout == "two",
        layers=facts.num_layers,
        full_layers=facts.num_full,
        experts=facts.experts_per_layer,
        routed=facts.experts_per_token,
        slot_bytes=plan.experts.slot_bytes,
        dense_bytes=facts.decode_dense_bytes,
        kv_bytes_per_token=plan.kv_cache.bytes_per_token,
        state_bytes=plan.kv_cache.state_bytes_per_sequence,
        active_parameters=facts.active_parameters,
        expert_parameters=facts.num_layers * facts.experts_per_token * facts.expert_parameters,
        head_parameters=facts.vocab_size * facts.hidden_size,
        flops_per_pair=facts.attention_flops_per_pair,
        launches=sum(isinstance(item, BoundStep) for item in decode),
    )


def plan_residency(plan: Plan) -> Residency:
    """How much of the experts is on the device."""
    return Residency(
        offloaded=plan.experts.placement == "offload",
        slots=plan.experts.slots,
        total=plan.experts.total,
        span=plan.schedule.prefill_span,
        waves=plan.programs.prefill.bounds.get("waves", 1),
    )
