"""`Costs` and `Residency` of a finished plan: what `speed.py` asks, read from the plan instead of from the passes."""

from firmtoken.compiler.costs import Costs, Residency, describe_costs
from firmtoken.compiler.facts import ModelFacts
from firmtoken.compiler.machine import Machine
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import BoundStep
from firmtoken.compiler.unroll import unroll


def plan_costs(machine: Machine, facts: ModelFacts, plan: Plan) -> Costs:
    """Costs of the plan's layout on this machine."""
    decode = unroll(plan.programs.decode, facts.layer_kinds)
    return describe_costs(
        machine,
        facts,
        captured=plan.programs.decode.captured,
        overlaps=plan.streams.layout == "two",
        slot_bytes=plan.experts.slot_bytes,
        kv_bytes_per_token=plan.kv_cache.bytes_per_token,
        state_bytes=plan.kv_cache.state_bytes_per_sequence,
        launches=sum(isinstance(item, BoundStep) for item in decode),
        mixer_tile=plan.schedule.mixer_tile,
        moe_chunk=plan.schedule.moe_chunk,
        resident=plan.experts.placement == "resident",
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
