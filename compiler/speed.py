"""Predicted seconds of decode steps and prefills, from a plan's numbers alone (performance.md 2, prototype.md 4)."""

from dataclasses import dataclass

from firmtoken.compiler.facts import CacheChoice, Candidates, Laid, ModelFacts, Split
from firmtoken.compiler.hit_rates import hit_rate, miss_rate
from firmtoken.compiler.machine import Machine

DECODE_EFFICIENCY = 0.6
"""Share of the memory bandwidth that a decode step reaches (performance.md 2.2: fits six public results)."""
PREFILL_BANDWIDTH_EFFICIENCY = 0.8
"""The same for the long reads of a prefill (prototype.md 4)."""
PREFILL_EFFICIENCY = 0.45
"""Share of dense peak: 74 of 165 TFLOP/s on a 4090, 450 of 989 on an H200 (performance.md 2.3)."""
LAYER_S = 20e-6
"""Fixed time of a layer, captured or in a prefill (performance.md 2.2)."""
KERNEL_S = 6e-6
"""Least time of one kernel in a graph: 370 launches took 2.2 ms where bytes did not count (performance.md 2.2)."""
ADMISSION_S = 12e-6
"""Of a layer's expert table when experts are offloaded (prototype.md 2.2)."""
ON_DEMAND_S = 30e-6
"""Per layer: route, read the miss list, start the fetch (prototype.md 4)."""

REFERENCE_PROMPT = 2_000
"""Uncached prompt tokens of the reference turn (D16)."""
REFERENCE_OUTPUT = 400
REFERENCE_DEPTH = 8 * 1024
PREFILL_PROBE = 8 * 1024
"""Prompt whose speed is quoted as prefill tokens/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Everything that speed depends on and that the split does not change."""

    machine: Machine
    captured: bool
    """Whether decode steps are CUDA graphs."""
    layers: int
    experts: int
    """Of a layer."""
    routed: int
    slot_bytes: int
    dense_bytes: int
    """What a step reads whatever it routes to."""
    kv_bytes_per_token: int
    state_bytes: int
    """Of one sequence."""
    active_parameters: int
    flops_per_pair: int
    launches: int
    """Of a decode step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """How much of the experts is on the device, and the pass over the layers that follows from it."""

    offloaded: bool
    slots: int
    total: int
    span: int
    """Tokens of one pass over the layers."""

    @property
    def fraction(self) -> float:
        """Copies that decode may hit, over all experts."""
        return self.slots / self.total

    @property
    def missing(self) -> int:
        """Experts, over all layers, that a prefill must stream."""
        return self.total - self.slots if self.offloaded else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What a split is worth."""

    decode_tokens_per_s: float
    """One stream at depth 8k."""
    decode_tokens_per_s_full: float
    """All requests together at depth 8k."""
    prefill_tokens_per_s: float
    """8,192 uncached tokens."""
    ttft_s: float
    """Of 2,000 uncached tokens."""
    turn_s: float
    """Reference turn, one stream: 2,000 uncached tokens in, 400 out."""
    turn_s_full: float
    """The same when all requests do it at once."""
    hit_rate: float


def describe_costs(
    machine: Machine,
    facts: ModelFacts,
    cache: CacheChoice,
    candidates: Candidates,
    laid: Laid,
    *,
    captured: bool,
) -> Costs:
    """Costs of one layout."""
    return Costs(
        machine=machine,
        captured=captured,
        layers=facts.num_layers,
        experts=facts.experts_per_layer,
        routed=facts.experts_per_token,
        slot_bytes=candidates.slot_bytes,
        dense_bytes=facts.decode_dense_bytes,
        kv_bytes_per_token=facts.kv_elements_per_token * cache.kv_bytes_per_element,
        state_bytes=cache.state_bytes_per_sequence,
        active_parameters=facts.active_parameters,
        flops_per_pair=facts.attention_flops_per_pair,
        launches=laid.launches,
    )


def split_residency(facts: ModelFacts, split: Split) -> Residency:
    """What speed depends on, of a finished split."""
    return Residency(
        offloaded=split.placement == "offload",
        slots=sum(split.experts.slots_per_layer),
        total=facts.total_experts,
        span=split.prefill_span,
    )


def speed(costs: Costs, residency: Residency, requests: int) -> Speed:
    """Predicted speed of a split (D16)."""
    one = decode_step_s(costs, residency, sequences=1, depth=REFERENCE_DEPTH)
    full = decode_step_s(costs, residency, sequences=requests, depth=REFERENCE_DEPTH)
    first = prefill_s(costs, residency, REFERENCE_PROMPT)
    return Speed(
        decode_tokens_per_s=1 / one,
        decode_tokens_per_s_full=requests / full,
        prefill_tokens_per_s=PREFILL_PROBE / prefill_s(costs, residency, PREFILL_PROBE),
        ttft_s=first,
        turn_s=first + REFERENCE_OUTPUT * one,
        turn_s_full=requests * first + REFERENCE_OUTPUT * full,
        hit_rate=hit_rate(residency.fraction) if residency.offloaded else 1.0,
    )


def decode_step_s(costs: Costs, residency: Residency, *, sequences: int, depth: int) -> float:
    """Read what the step needs, fixed time, misses over the link: fetched in the graph, nothing overlaps."""
    read = device_bytes(costs, sequences=sequences, depth=depth)
    compute = sequences * 2 * costs.active_parameters / (costs.machine.flops * PREFILL_EFFICIENCY)
    seconds = max(read / (DECODE_EFFICIENCY * costs.machine.bandwidth), compute)
    if costs.captured:
        seconds = max(seconds + costs.layers * LAYER_S, costs.launches * KERNEL_S)
    else:
        seconds += costs.launches * costs.machine.launch_s
    if residency.offloaded:
        seconds += costs.layers * ADMISSION_S if costs.captured else 0.0
        seconds += link_bytes(costs, residency, sequences=sequences) / costs.machine.gather_rate
    return seconds


def device_bytes(costs: Costs, *, sequences: int, depth: int) -> float:
    """Device memory that a decode step reads; states are read and written."""
    experts = costs.layers * distinct_experts(costs, sequences) * costs.slot_bytes
    per_sequence = depth * costs.kv_bytes_per_token + 2 * costs.state_bytes
    return costs.dense_bytes + experts + sequences * per_sequence


def link_bytes(costs: Costs, residency: Residency, *, sequences: int) -> float:
    """Bytes of experts that a decode step fetches."""
    if not residency.offloaded:
        return 0.0
    misses = distinct_experts(costs, sequences) * miss_rate(residency.fraction, sequences)
    return costs.layers * misses * costs.slot_bytes


def distinct_experts(costs: Costs, tokens: int) -> float:
    """Experts of a layer that `tokens` tokens route to."""
    share = costs.routed / costs.experts
    return costs.experts * (1.0 - (1.0 - share) ** tokens) if share < 1.0 else costs.experts


def prefill_s(costs: Costs, residency: Residency, tokens: int, depth: int = 0) -> float:
    """Layer-major passes of `span` tokens after `depth` cached ones; the link runs one layer ahead."""
    stream = bank_stream_s(costs, residency)
    seconds = stream / costs.layers  # the first layer's misses are waited for
    done = 0
    while done < tokens:
        size = min(residency.span, tokens - done)
        seconds += max(compute_s(costs, size, depth + done), stream)
        done += size
    return seconds


def bank_stream_s(costs: Costs, residency: Residency) -> float:
    """Every missing expert once over the copy engine."""
    return residency.missing * costs.slot_bytes / costs.machine.copy_rate


def compute_s(costs: Costs, tokens: int, depth: int) -> float:
    """All layers for `tokens` tokens after `depth` earlier ones: bound by arithmetic or by reading the weights."""
    pairs = depth + tokens / 2
    flop = tokens * (2 * costs.active_parameters + costs.flops_per_pair * pairs)
    read = costs.dense_bytes + costs.layers * distinct_experts(costs, tokens) * costs.slot_bytes
    bound = max(
        flop / (costs.machine.flops * PREFILL_EFFICIENCY),
        read / (PREFILL_BANDWIDTH_EFFICIENCY * costs.machine.bandwidth),
    )
    fixed = costs.layers * LAYER_S
    return bound + max(fixed, costs.launches * costs.machine.launch_s)


def on_demand_s(costs: Costs, residency: Residency, tokens: int, hits: float) -> float:
    """The `extend` program: route, fetch what is missing, compute; nothing overlaps. `hits`: the prompt's hit rate."""
    missing = residency.missing / costs.layers
    if missing <= 0:
        return compute_s(costs, tokens, 0)
    share = min(1.0, costs.routed * (1.0 - hits) / missing)
    fetched = costs.layers * missing * (1.0 - (1.0 - share) ** tokens)
    fetch = fetched * costs.slot_bytes / costs.machine.gather_rate
    return compute_s(costs, tokens, 0) + fetch + costs.layers * ON_DEMAND_S


def hiding_tokens(costs: Costs, residency: Residency, most: int) -> int:
    """N*: the least pass whose compute hides the stream of the missing bank, at most `most` (D7)."""
    stream = bank_stream_s(costs, residency)
    low, high = 1, max(1, most)
    while low < high:
        middle = (low + high) // 2
        if compute_s(costs, middle, 0) >= stream:
            high = middle
        else:
            low = middle + 1
    return low
