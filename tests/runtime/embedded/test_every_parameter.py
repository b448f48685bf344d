"""Before an engine is ready every parameter has been loaded: what no file filled would still be what it was before."""

from dataclasses import replace
from pathlib import Path

import pytest

from firmtoken.compiler.pipeline import compile_profile
from firmtoken.compiler.plan import Plan
from firmtoken.compiler.program import Value
from firmtoken.runtime.engine.loading import checkpoint_folder, load_weights
from firmtoken.runtime.engine.program import Interpreter
from firmtoken.runtime.kernels import CARDS
from firmtoken.runtime.kernels.expert_slots import make_arena
from firmtoken.runtime.memory.arena import Arena
from firmtoken.runtime.weights.errors import LoadError
from firmtoken.runtime.weights.preflight import preflight
from firmtoken.schema.load import load_profile

PROFILES = Path(__file__).resolve().parents[3] / "profiles"
UNTOUCHED = 255
"""Four such bytes are no number."""


def plan_of(profile: str) -> Plan:
    return compile_profile(load_profile(str(PROFILES / f"{profile}.yaml"), ()).profile, CARDS)


def loaded(plan: Plan) -> Interpreter:
    """An engine's memory, wild before its weights were read."""
    arena = Arena(plan.spaces, {})
    for memory in (arena.device, *arena.host.values()):
        memory.fill_(UNTOUCHED)
    interpreter = Interpreter(plan, arena)
    load_weights(plan, interpreter, preflight(plan, checkpoint_folder(plan)), lambda *_: None)
    return interpreter


@pytest.mark.report(56, 66)
@pytest.mark.parametrize("profile", ["tiny-cpu", "tiny-cpu-resident"])
def test_nothing_is_left_of_what_memory_held_before(profile: str) -> None:
    plan = plan_of(profile)
    interpreter = loaded(plan)
    views, kinds = interpreter.views, plan.model.layer_kinds
    counts = {"": 1, "layer": len(kinds)} | {kind: kinds.count(kind) for kind in set(kinds)}
    for weight in plan.weights:
        for ordinal in range(counts[weight.axis]):
            assert views.weight(weight.name, ordinal).isfinite().all(), f"{weight.name}[{ordinal}]"
    experts = plan.experts
    for layer in range(len(kinds)):
        filled = experts.slots_per_layer[layer]
        first = sum(experts.slots_per_layer[:layer])
        held = [views.experts.slots[first : first + filled]]
        if experts.placement == "offload":
            held.append(views.tensor(Value("bank", (layer,))))
            assert len(held[1]) == experts.per_layer
        for slots in held:
            for name, part in make_arena(slots, experts.slot_parts).parts.items():
                assert part.isfinite().all(), f"`{name}` of a slot of layer {layer}"
    interpreter.close()


@pytest.mark.report(66)
def test_a_parameter_that_no_tensor_fills_is_refused_by_name() -> None:
    plan = plan_of("tiny-cpu")
    [norm] = [weight for weight in plan.weights if weight.name == "final_norm"]
    [source] = norm.sources
    other = replace(norm, sources=(source.replace("norm", "scale"),))
    weights = tuple(other if weight is norm else weight for weight in plan.weights)
    with pytest.raises(LoadError, match=r"scale.*expected this tensor, found none of this name"):
        preflight(replace(plan, weights=weights), checkpoint_folder(plan))
