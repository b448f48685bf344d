"""Predicted seconds of decode steps and prefills, from a plan's numbers alone (performance.md 2, prototype.md 4)."""

from dataclasses import dataclass

from firmtoken.compiler.costs import Costs, Residency
from firmtoken.compiler.estimate_constants import (
    ADMISSION_S,
    FIRST_TOKEN_HOST_S,
    GDN_CHUNK_S,
    ON_DEMAND_S,
    PREFILL_LAYER_S,
    PREFILL_PROBE,
    REFERENCE_DEPTH,
    REFERENCE_OUTPUT,
    REFERENCE_PROMPT,
    STEP_HOST_S,
    WALK_LAYER_S,
)
from firmtoken.compiler.hit_rates import hit_rate, miss_rate
from firmtoken.compiler.kernel_times import (
    few_rows_s,
    grouped_rows_s,
    launch_s,
    layer_attention_s,
    many_rows_s,
    read_s,
)
from firmtoken.compiler.machine import Machine
from firmtoken.compiler.passes.bound_batches import CHUNK_UNIT


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


def speed(costs: Costs, residency: Residency, requests: int) -> Speed:
    """Predicted speed of a split (D16)."""
    one = decode_step_s(costs, residency, sequences=1, depth=REFERENCE_DEPTH)
    full = decode_step_s(costs, residency, sequences=requests, depth=REFERENCE_DEPTH)
    first = prefill_s(costs, residency, REFERENCE_PROMPT) + first_token_host_s(costs.machine)
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
    """From one step's tokens to the next's: the device's part, and the host's between two of them."""
    return decode_device_s(costs, residency, sequences=sequences, depth=depth) + step_host_s(
        costs.machine
    )


def decode_device_s(costs: Costs, residency: Residency, *, sequences: int, depth: int) -> float:
    """Work, launches, misses over the link: fetched in the graph, nothing overlaps."""
    seconds = decode_work_s(costs, sequences=sequences, depth=depth)
    seconds += decode_fixed_s(costs) + admission_s(costs, residency)
    return seconds + link_bytes(costs, residency, sequences=sequences) / costs.machine.gather_rate


def decode_work_s(costs: Costs, *, sequences: int, depth: int) -> float:
    """Seconds of a step's bytes and of what is done with its weights; each distinct expert has its own rows."""
    machine, parameters = costs.machine, costs.dense_parameters + costs.head_parameters
    seconds = read_s(machine, device_bytes(costs, sequences=sequences, depth=depth))
    seconds += few_rows_s(machine, parameters, sequences)
    return seconds + costs.layers * routed_decode_s(costs, sequences)


def routed_decode_s(costs: Costs, sequences: int) -> float:
    """What a step does with one layer's routed experts, beyond reading them."""
    distinct = distinct_experts(costs, sequences)
    rows = sequences * costs.routed / distinct
    return few_rows_s(costs.machine, distinct * costs.one_expert, rows)


def decode_fixed_s(costs: Costs) -> float:
    """Seconds of a step's launches beyond their work; without a graph every launch also comes from the host."""
    each = launch_s(costs.machine)
    if not costs.captured:
        each += costs.machine.launch_s
    return costs.launches * each


def step_host_s(machine: Machine) -> float:
    """Seconds of a decode step in which a GPU waits for the host; a CPU is its own host."""
    return STEP_HOST_S if machine.kind == "cuda" else 0.0


def first_token_host_s(machine: Machine) -> float:
    """The same of a first token, from the request on."""
    return FIRST_TOKEN_HOST_S if machine.kind == "cuda" else 0.0


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
    if costs.overlaps:
        # The link runs one layer ahead: only the first layer's misses are waited for.
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
    experts = experts_s(costs, tokens)
    exposed = compute - experts + (1 - 2 * wave) * stream + 2 * wave * experts
    return max(seconds, exposed)


def bank_stream_s(costs: Costs, residency: Residency) -> float:
    """Every missing expert once over the copy engine."""
    return residency.missing * costs.slot_bytes / costs.machine.copy_rate


def compute_s(costs: Costs, tokens: int, depth: int) -> float:
    """All layers for `tokens` tokens after `depth` earlier ones, and the head for the last of them."""
    device = (
        prefill_fixed_s(costs, tokens)
        + dense_s(costs, tokens)
        + few_rows_s(costs.machine, costs.head_parameters, 1)
        + experts_s(costs, tokens)
        + attention_s(costs, tokens, depth)
        + (costs.layers - costs.full_layers) * chain_s(costs, tokens)
    )
    return max(device, walk_s(costs, tokens))


def walk_s(costs: Costs, tokens: int) -> float:
    """Seconds in which the host launches what no graph of a resident plan holds.

    Where experts are fetched the link is waited for longer; nobody measured that.
    """
    rows = costs.prompt_rows
    if not costs.resident or not rows or (costs.captured and tokens <= rows[-1]):
        return 0.0
    return -(-tokens // costs.moe_chunk) * costs.layers * WALK_LAYER_S


def prefill_fixed_s(costs: Costs, tokens: int) -> float:
    """Seconds of a pass that neither bytes nor FLOP explain: the launches of each chunk."""
    each = costs.launches * costs.machine.launch_s
    if costs.machine.kind == "cuda":
        each = max(each, costs.layers * PREFILL_LAYER_S)
    return -(-tokens // costs.moe_chunk) * each


def dense_s(costs: Costs, tokens: int) -> float:
    """All dense weights, read once a tile, with a pass's tokens."""
    tiles = -(-tokens // costs.mixer_tile)
    rows = next((rows for rows in costs.prompt_rows if rows >= tokens), tokens)
    products = many_rows_s(costs.machine, costs.dense_parameters, rows)
    return read_s(costs.machine, tiles * costs.dense_bytes) + products


def experts_s(costs: Costs, tokens: int) -> float:
    """The routed experts of a pass, read once a chunk."""
    chunks, rest = divmod(tokens, costs.moe_chunk)
    seconds = chunks * chunk_experts_s(costs, costs.moe_chunk)
    if rest:
        seconds += chunk_experts_s(costs, rest)
    return costs.layers * seconds


def chunk_experts_s(costs: Costs, tokens: int) -> float:
    """One layer's routed experts with one chunk of so many tokens."""
    distinct = distinct_experts(costs, tokens)
    rows = tokens * costs.routed / distinct
    products = grouped_rows_s(costs.machine, distinct * costs.one_expert, rows)
    return read_s(costs.machine, distinct * costs.slot_bytes) + products


def attention_s(costs: Costs, tokens: int, depth: int) -> float:
    """The part of `compute_s` that grows with depth."""
    if not costs.full_layers:
        return 0.0
    flop = tokens * costs.flops_per_pair * (depth + tokens / 2) / costs.full_layers
    return costs.full_layers * layer_attention_s(costs.machine, flop, depth + tokens)


def chain_s(costs: Costs, tokens: int) -> float:
    """One linear layer's walk along a prompt, chunk after chunk; a CPU's is in its launches."""
    return -(-tokens // CHUNK_UNIT) * GDN_CHUNK_S if costs.machine.kind == "cuda" else 0.0


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
