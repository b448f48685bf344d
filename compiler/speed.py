"""Predicted seconds of decode steps and prefills, from a plan's numbers alone (performance.md 2, prototype.md 4)."""

from dataclasses import dataclass

from firmtoken.compiler.estimate_constants import (
    ADMISSION_S,
    DECODE_EFFICIENCY,
    KERNEL_S,
    LAYER_S,
    ON_DEMAND_S,
    PREFILL_BANDWIDTH_EFFICIENCY,
    PREFILL_EFFICIENCY,
    PREFILL_PROBE,
    REFERENCE_DEPTH,
    REFERENCE_OUTPUT,
    REFERENCE_PROMPT,
)
from firmtoken.compiler.facts import ModelFacts, Split
from firmtoken.compiler.hit_rates import hit_rate, miss_rate
from firmtoken.compiler.machine import Machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Everything that speed depends on and that the split does not change."""

    machine: Machine
    captured: bool
    """Whether decode steps are CUDA graphs."""
    overlaps: bool
    """Whether expert copies have a stream of their own, so that a layer's come while the one before computes."""
    layers: int
    full_layers: int
    """Those with attention over everything before."""
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
    """That a token multiplies with in the layers."""
    expert_parameters: int
    """Those of them that are routed experts'."""
    head_parameters: int
    """That the last token of a sequence multiplies with after the layers."""
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
    waves: int = 1
    """In how many parts a layer's missing experts pass through a smaller ring; 1: all at once, a layer ahead (D8)."""

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
    *,
    captured: bool,
    overlaps: bool,
    slot_bytes: int,
    kv_bytes_per_token: int,
    state_bytes: int,
    launches: int,
) -> Costs:
    """Costs of one layout: what a model costs on any, and the layout's own numbers."""
    return Costs(
        machine=machine,
        captured=captured,
        overlaps=overlaps,
        layers=facts.num_layers,
        full_layers=facts.num_full,
        experts=facts.experts_per_layer,
        routed=facts.experts_per_token,
        slot_bytes=slot_bytes,
        dense_bytes=facts.decode_dense_bytes,
        kv_bytes_per_token=kv_bytes_per_token,
        state_bytes=state_bytes,
        active_parameters=facts.active_parameters,
        expert_parameters=facts.num_layers * facts.experts_per_token * facts.expert_parameters,
        head_parameters=facts.vocab_size * facts.hidden_size,
        flops_per_pair=facts.attention_flops_per_pair,
        launches=launches,
    )


def split_residency(facts: ModelFacts, split: Split) -> Residency:
    """What speed depends on, of a finished split."""
    return Residency(
        offloaded=split.placement == "offload",
        slots=sum(split.experts.slots_per_layer),
        total=facts.total_experts,
        span=split.prefill_span,
        waves=split.experts.waves,
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
    seconds = max(decode_bound_s(costs, sequences=sequences, depth=depth))
    seconds += decode_fixed_s(costs, seconds) + admission_s(costs, residency)
    return seconds + link_bytes(costs, residency, sequences=sequences) / costs.machine.gather_rate


def decode_bound_s(costs: Costs, *, sequences: int, depth: int) -> tuple[float, float]:
    """Seconds that a step's bytes take, and its arithmetic (2 FLOP a parameter and sequence)."""
    parameters = costs.active_parameters + costs.head_parameters
    read = device_bytes(costs, sequences=sequences, depth=depth)
    return (
        read / (DECODE_EFFICIENCY * costs.machine.bandwidth),
        sequences * 2 * parameters / (costs.machine.flops * PREFILL_EFFICIENCY),
    )


def decode_fixed_s(costs: Costs, bound: float) -> float:
    """Seconds of a step beyond its `bound`: layers or launches, whichever is more.

    Without a graph every launch also comes from the host, so a step is never faster than with one.
    """
    seconds = 0.0
    if costs.machine.kind == "cuda":
        seconds = max(costs.layers * LAYER_S, costs.launches * KERNEL_S - bound)
    if not costs.captured:
        seconds += costs.launches * costs.machine.launch_s
    return seconds


def admission_s(costs: Costs, residency: Residency) -> float:
    """Seconds of a step for the expert tables; on a CPU they are launches like others."""
    gpu = costs.machine.kind == "cuda"
    return costs.layers * ADMISSION_S if gpu and residency.offloaded else 0.0


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
    """Layer-major passes of `span` tokens after `depth` cached ones."""
    seconds = 0.0
    if (
        costs.overlaps
    ):  # the link runs one layer ahead: only the first layer's misses are waited for
        seconds = bank_stream_s(costs, residency) / costs.layers
    done = 0
    while done < tokens:
        size = min(residency.span, tokens - done)
        seconds += pass_s(costs, residency, size, depth + done)
        done += size
    return seconds


def pass_s(costs: Costs, residency: Residency, tokens: int, depth: int) -> float:
    """One pass over the layers: compute hides the stream of the bank or is hidden; on one stream they add up.

    The link is one layer ahead, no more, so what attention needs in a few layers hides nothing of the others' stream.
    In waves (D8) the link is two waves ahead of the experts and waits while mixers run: of a layer's W waves all but
    two, and the experts' part of two, are exposed.
    """
    compute, stream = compute_s(costs, tokens, depth), bank_stream_s(costs, residency)
    if not costs.overlaps:
        return compute + stream
    attention = attention_s(costs, tokens, depth)
    plain, ahead = (compute - attention) / costs.layers, stream / costs.layers
    seconds = (costs.layers - costs.full_layers) * max(plain, ahead)
    if costs.full_layers:
        seconds += costs.full_layers * max(plain + attention / costs.full_layers, ahead)
    if residency.waves <= 2:
        return seconds
    wave = 1 / residency.waves
    experts = experts_s(costs, tokens, depth)
    exposed = compute - experts + (1 - 2 * wave) * stream + 2 * wave * experts
    return max(seconds, exposed)


def bank_stream_s(costs: Costs, residency: Residency) -> float:
    """Every missing expert once over the copy engine."""
    return residency.missing * costs.slot_bytes / costs.machine.copy_rate


def compute_s(costs: Costs, tokens: int, depth: int) -> float:
    """All layers for `tokens` tokens after `depth` earlier ones: bound by arithmetic or by reading the weights."""
    return max(prefill_bound_s(costs, tokens, depth)) + prefill_fixed_s(costs)


def prefill_bound_s(costs: Costs, tokens: int, depth: int) -> tuple[float, float]:
    """Seconds that a pass's bytes take, and its arithmetic; the head sees the last token only."""
    pairs = depth + tokens / 2
    flop = tokens * (2 * costs.active_parameters + costs.flops_per_pair * pairs)
    flop += 2 * costs.head_parameters
    read = costs.dense_bytes + costs.layers * distinct_experts(costs, tokens) * costs.slot_bytes
    return (
        read / (PREFILL_BANDWIDTH_EFFICIENCY * costs.machine.bandwidth),
        flop / (costs.machine.flops * PREFILL_EFFICIENCY),
    )


def prefill_fixed_s(costs: Costs) -> float:
    """Seconds of a pass that neither bytes nor FLOP explain."""
    return max(costs.layers * LAYER_S, costs.launches * costs.machine.launch_s)


def attention_s(costs: Costs, tokens: int, depth: int) -> float:
    """The part of `compute_s` that grows with depth; none where a pass is bound by the weights that it reads."""
    read, arithmetic = prefill_bound_s(costs, tokens, depth)
    if read > arithmetic:
        return 0.0
    flop = tokens * costs.flops_per_pair * (depth + tokens / 2)
    return flop / (costs.machine.flops * PREFILL_EFFICIENCY)


def experts_s(costs: Costs, tokens: int, depth: int) -> float:
    """The routed experts' part of `compute_s`, without fixed time."""
    read, arithmetic = prefill_bound_s(costs, tokens, depth)
    if arithmetic >= read:
        flop = tokens * 2 * costs.expert_parameters
        return flop / (costs.machine.flops * PREFILL_EFFICIENCY)
    experts = costs.layers * distinct_experts(costs, tokens) * costs.slot_bytes
    return experts / (PREFILL_BANDWIDTH_EFFICIENCY * costs.machine.bandwidth)


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
