"""The part of a plan that the server needs."""

from collections.abc import Mapping
from dataclasses import dataclass

from firmtoken.compiler.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPlan:
    """Numbers of one plan, as the door, the routes and the engine client use them."""

    model: str
    dialect: str
    vocab_size: int
    effective_context: int
    model_max: int
    largest_context: int
    """The most that a profile could ask for on this machine, all else as it is."""
    limited_by: str
    page_size: int
    pages: int
    """Pages that requests may hold: the sentinel is not among them."""
    max_num_seqs: int
    queue: int
    queue_tokens: int
    default_output: int
    output_reserve: int
    segments: Mapping[str, int]
    """Shared host memory, by name: bytes."""
    environment: Mapping[str, str]


def serving_plan(plan: Plan) -> ServingPlan:
    """What `plan` says to the server."""
    return ServingPlan(
        model=plan.model.name,
        dialect=plan.model.dialect,
        vocab_size=int(plan.model.geometry["vocab_size"]),
        effective_context=plan.context.effective,
        model_max=plan.context.model_max,
        largest_context=max(row.context for row in plan.frontier),
        limited_by=plan.context.limited_by,
        page_size=plan.kv_cache.page_size,
        pages=plan.kv_cache.pages - 1,
        max_num_seqs=plan.schedule.max_num_seqs,
        queue=plan.admission.queue,
        queue_tokens=plan.admission.queue_tokens,
        default_output=plan.admission.default_output,
        output_reserve=plan.admission.output_reserve,
        segments={space.name: space.bytes for space in plan.spaces if space.shared},
        environment=plan.environment,
    )
