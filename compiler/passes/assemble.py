"""`assemble`: the parts of the passes to one plan, with the programs and kernels of the chosen placement only."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from firmtoken.compiler.admission import OUTPUT_RESERVE
from firmtoken.compiler.cards import KernelCard
from firmtoken.compiler.choices import KernelChoice
from firmtoken.compiler.facts import CacheChoice, Laid, ModelFacts, Split
from firmtoken.compiler.fingerprint import (
    cards_fingerprint,
    fingerprint,
    hazards_fingerprint,
    profile_fingerprint,
)
from firmtoken.compiler.hazard_effects import hazard_environment, hazard_warnings
from firmtoken.compiler.ledger import Memory
from firmtoken.compiler.passes.place_memory import PlacedMemory
from firmtoken.compiler.plan import (
    SCHEMA,
    Admission,
    Advice,
    Context,
    Estimates,
    Experts,
    KvCache,
    Plan,
    PlanDevice,
    PlanInputs,
    PlanModel,
    PlanProfile,
    Programs,
    Schedule,
    SlotPart,
)
from firmtoken.compiler.sessions import PHASE
from firmtoken.compiler.situation import Situation, describe_situation
from firmtoken.compiler.steps import steps_of
from firmtoken.compiler.workspaces import cublas_setting
from firmtoken.schema.canonical import section_data
from firmtoken.schema.hardware import Gpu
from firmtoken.schema.model import Model
from firmtoken.schema.profile import Profile

QUEUE_CONTEXTS = 16
"""So many prompts of the longest kind may wait, or as many more as they are shorter."""
MAX_PREEMPTIONS = 2
MAX_PASSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the passes returned."""

    profile: Profile
    facts: ModelFacts
    cache: CacheChoice
    slot_format: str
    slot_parts: tuple[SlotPart, ...]
    kernels: tuple[KernelChoice, ...]
    laid: Laid
    split: Split
    memory: PlacedMemory
    schedule: Schedule
    estimates: Estimates
    advice: tuple[Advice, ...]
    cards: tuple[KernelCard, ...]


def assemble(parts: Parts) -> Plan:
    """The plan, fingerprint included."""
    profile, split = parts.profile, parts.split
    on_cpu = profile.hardware.cpu is not None
    programs = _bounded(parts.laid.programs, parts)
    kernels = _kernels_of(programs, parts)
    chosen = _cards_of(kernels, parts)
    situation = describe_situation(profile, parts.cache)
    return Plan(
        schema=SCHEMA,
        fingerprint=fingerprint(profile, parts.cards),
        inputs=PlanInputs(cards=cards_fingerprint(parts.cards), hazards=hazards_fingerprint()),
        profile=PlanProfile(
            name=profile.name,
            description=profile.description,
            fingerprint=profile_fingerprint(profile),
        ),
        hardware=_hardware(profile),
        model=_model(profile.model, parts.facts),
        device=PlanDevice(
            kind="cpu" if on_cpu else "cuda",
            index=str(profile.hardware.gpu.device) if profile.hardware.gpu else "auto",
            rank=0,
            survives_errors=on_cpu,
        ),
        environment=_environment(chosen, situation, profile.hardware.gpu),
        context=_context(parts),
        memory=Memory(device=split.device, host=split.host),
        experts=_experts(parts),
        kv_cache=_kv_cache(parts),
        kernels=kernels,
        streams=parts.laid.streams,
        weights=parts.memory.weights,
        buffers=parts.memory.buffers,
        spaces=parts.memory.spaces,
        programs=programs,
        schedule=parts.schedule,
        admission=_admission(parts),
        frontier=split.frontier,
        advice=parts.advice,
        estimates=parts.estimates,
        warnings=(*split.warnings, *hazard_warnings(profile, chosen, situation)),
        faults=(),
    )


def _bounded(programs: Programs, parts: Parts) -> Programs:
    """A span has at most so many chunks, a layer's misses exactly so many waves."""
    experts = parts.split.experts
    waves = {"waves": experts.waves} if experts.layout == "waves" else {}
    chunks = -(-parts.schedule.prefill_span // parts.schedule.moe_chunk)
    prefill, extend = programs.prefill, programs.extend
    return replace(
        programs,
        prefill=replace(prefill, bounds={**prefill.bounds, **waves, "chunks": chunks}),
        extend=replace(extend, bounds={**extend.bounds, **waves}),
    )


def _hardware(profile: Profile) -> dict[str, object]:
    hardware = dict(section_data(profile.hardware, "hardware."))
    return {"name": profile.hardware.name, **hardware}


def _model(model: Model, facts: ModelFacts) -> PlanModel:
    geometry = _flat(section_data(model.geometry, ""))
    source = _flat(msgspec.to_builtins(model.source.model_dump()))
    return PlanModel(
        name=model.name,
        family=model.family,
        dialect=model.dialect,
        source={name: str(value) for name, value in source.items()},
        layer_kinds=facts.layer_kinds,
        geometry={
            name: value for name, value in geometry.items() if isinstance(value, int | float)
        },
        quantization={name: str(value) for name, value in model.quantization if value is not None},
    )


def _flat(data: Mapping[str, object]) -> dict[str, object]:
    """Mappings inside are spelled with a dot; what is null is not there."""
    flat: dict[str, object] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": each for inner, each in _flat(value).items()}
        elif value is not None:
            flat[name] = value
    return flat


def _environment(
    chosen: Sequence[KernelCard], situation: Situation, gpu: Gpu | None
) -> dict[str, str]:
    """What libraries need, set by the server process for the engine (D17).

    A kernel is loaded when it is first launched: `EAGER` loads all of torch's, which no plan has memory for. The wait
    of H-46 (a first launch, while another kernel waits for a flag) cannot come: streams wait for events alone.
    """
    if gpu is None:
        return {"OMP_WAIT_POLICY": "PASSIVE"}
    return {
        **hazard_environment(chosen, situation),
        "CUDA_MODULE_LOADING": "LAZY",
        "CUBLAS_WORKSPACE_CONFIG": cublas_setting(gpu.capability),
    }


def _context(parts: Parts) -> Context:
    split = parts.split
    return Context(
        effective=split.context,
        requested=str(parts.profile.serving.context),
        model_max=parts.facts.max_positions,
        limited_by=split.limited_by,
        because=split.context_because,
    )


def _experts(parts: Parts) -> Experts:
    experts, facts = parts.split.experts, parts.facts
    slots = sum(experts.slots_per_layer)
    last = parts.slot_parts[-1]
    return Experts(
        placement=parts.split.placement,
        slots=slots,
        slots_per_layer=experts.slots_per_layer,
        staging_slots=experts.staging_slots,
        overflow_slots=experts.overflow_slots,
        slot_bytes=_slot_bytes(parts, last),
        format=parts.slot_format,
        slot_parts=parts.slot_parts,
        sources=facts.expert_sources,
        per_layer=facts.experts_per_layer,
        total=facts.total_experts,
        resident_fraction=slots / facts.total_experts,
        ring=experts.ring,
        because=parts.split.experts_because,
    )


def _slot_bytes(parts: Parts, last: SlotPart) -> int:
    lines = {line.name: line for line in parts.split.device.lines}
    size = lines["experts.cache"].unit_bytes
    assert size >= last.offset + last.bytes, "a slot holds its parts"
    return size


def _kv_cache(parts: Parts) -> KvCache:
    cache, split, facts = parts.cache, parts.split, parts.facts
    return KvCache(
        type=cache.type,
        page_size=cache.page_size,
        pages=split.pages,
        tokens=split.pool,
        dtype=cache.kv_dtype,
        bytes_per_token=facts.kv_elements_per_token * cache.kv_bytes_per_element,
        state_slots=split.state_slots,
        snapshot_slots=split.snapshot_slots,
        state_bytes_per_sequence=cache.state_bytes_per_sequence,
        because=cache.because,
    )


def _kernels_of(programs: Programs, parts: Parts) -> tuple[KernelChoice, ...]:
    used = {
        (step.op, PHASE[name], step.kernel)
        for name, program in programs.named()
        for step in steps_of(program)
    }
    return tuple(row for row in parts.kernels if (row.op, row.phase, row.kernel) in used)


def _cards_of(kernels: Sequence[KernelChoice], parts: Parts) -> tuple[KernelCard, ...]:
    names = {(row.op, row.kernel) for row in kernels}
    return tuple(card for card in parts.cards if (card.op, card.name) in names)


def _admission(parts: Parts) -> Admission:
    serving, context = parts.profile.serving, parts.split.context
    return Admission(
        max_prompt_tokens=context - 1,
        output_reserve=OUTPUT_RESERVE,
        default_output=serving.output,
        pages_per_request_rule="ceil((prompt + output) / page_size)",
        queue=serving.queue,
        queue_tokens=QUEUE_CONTEXTS * context,
        max_preemptions=MAX_PREEMPTIONS,
        max_passes=MAX_PASSES,
    )
