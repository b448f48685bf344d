"""The lines of both ledgers: what each byte is for, from the numbers of a split. No line is a remainder."""

from collections.abc import Iterable, Iterator, Sequence

from firmtoken.compiler.facts import (
    Batches,
    CacheChoice,
    Candidates,
    ExpertSplit,
    Laid,
    ModelFacts,
    Workspace,
)
from firmtoken.compiler.ledger import Ledger, Line
from firmtoken.compiler.machine import Machine
from firmtoken.compiler.quantities import size
from firmtoken.compiler.tensor_bytes import ALIGN, align_up
from firmtoken.compiler.workspaces import workspace_line

CONTEXT_LINE, MARGIN_LINE = "cuda_context", "margin"
"""Lines that the engine of a GPU holds itself against."""
GRAPH_NODE_BYTES = 4 * 1024
"""Device memory of a captured graph, per launch: 1.4 KiB measured on an H200 (runtime/kernels/NOTES.md), 10 to 16 KiB
reported of older drivers (prototype.md 2.4)."""
MARGIN_BYTES = 128 * 2**20
"""For the driver's own growth: fixed, since a share of a large card would buy nothing (prototype.md 2.4)."""
PROCESS_BYTES = {"cpu": 2**30, "cuda": 3 * 2**30}
"""Interpreters and libraries of server and engine (prototype.md 2.4)."""


def line(
    name: str,
    *,
    unit_bytes: int,
    count: int = 1,
    unit: str = "1",
    kind: str = "fixed",
    source: str = "computed",
    because: str,
) -> Line:
    """A line whose bytes follow from its unit and count."""
    return Line(
        name=name,
        bytes=align_up(unit_bytes * count),
        unit_bytes=unit_bytes,
        count=count,
        unit=unit,
        align=ALIGN,
        kind=kind,
        source=source,
        because=because,
    )


def ledger(capacity: int, budget: int, lines: Iterable[Line]) -> Ledger:
    """A ledger of the lines that hold something; `free` may be negative where they do not fit."""
    held = tuple(part for part in lines if part.bytes)
    total = sum(part.bytes for part in held)
    return Ledger(capacity=capacity, budget=budget, total=total, free=budget - total, lines=held)


def weight_bytes(facts: ModelFacts) -> int:
    """Dense tensors in place: each begins at a multiple of `ALIGN`."""
    return sum(align_up(tensor.bytes) * facts.count(tensor.axis) for tensor in facts.tensors)


def fixed_lines(
    machine: Machine,
    facts: ModelFacts,
    batches: Batches,
    cache: CacheChoice,
    laid: Laid,
    workspaces: Iterable[Workspace],
    *,
    captured: bool,
) -> tuple[Line, ...]:
    """Device lines that neither context nor experts change."""
    requests = batches.max_num_seqs
    return (
        line("weights", unit_bytes=weight_bytes(facts), because="all tensors but the experts"),
        line(
            "states",
            unit_bytes=cache.state_bytes_per_sequence,
            count=state_slots(facts, requests),
            unit="sequence",
            kind="per_sequence",
            because=f"live and shadow state of {requests} requests, and slot 0 for padded rows",
        ),
        line(
            "activations",
            unit_bytes=laid.activation_bytes,
            because=f"the largest program: mixers in tiles of {batches.mixer_tile:,} tokens, "
            f"experts in chunks of {batches.moe_chunk:,}",
        ),
        line(
            "inputs",
            unit_bytes=laid.input_bytes,
            because="token ids, positions, page tables, and what lives across a yield",
        ),
        line("tables", unit_bytes=laid.table_bytes, because="expert tables, recency, miss lists"),
        *_workspace_lines(workspaces),
        *_cuda_lines(machine, batches, laid, captured=captured),
    )


def _workspace_lines(workspaces: Iterable[Workspace]) -> Iterator[Line]:
    for workspace in workspaces:
        yield line(
            workspace_line(workspace.name),
            unit_bytes=workspace.bytes,
            source=workspace.source,
            because=workspace.because,
        )


def _cuda_lines(
    machine: Machine, batches: Batches, laid: Laid, *, captured: bool
) -> tuple[Line, ...]:
    if machine.kind != "cuda":
        return ()
    sizes = batches.graph_batch_sizes if captured else ()
    rows = batches.prefill_graph_rows if captured and laid.placement == "resident" else ()
    return (
        line(
            CONTEXT_LINE,
            unit_bytes=machine.context_bytes,
            source="documented",
            because="the CUDA context and all modules, loaded before ready",
        ),
        line(
            "graphs",
            unit_bytes=GRAPH_NODE_BYTES,
            count=laid.launches * len(sizes) + laid.prefill_launches * len(rows),
            unit="launch",
            source="documented",
            because=_graphs_because(laid, sizes, rows),
        ),
        line(
            MARGIN_LINE,
            unit_bytes=MARGIN_BYTES,
            kind="reserve",
            source="documented",
            because="growth inside the driver that nobody announces",
        ),
    )


def _graphs_because(laid: Laid, sizes: Iterable[int], rows: Sequence[int]) -> str:
    decode = f"{laid.launches} launches for each decode batch of {', '.join(map(str, sizes))}"
    if not rows:
        return decode
    prompts = ", ".join(map(str, rows))
    return f"{decode}; {laid.prefill_launches} for prompts of up to {prompts} tokens"


def state_slots(facts: ModelFacts, requests: int) -> int:
    """Live and shadow for each request, slot 0 for padded rows; none without linear layers (D4)."""
    return 2 * requests + 1 if facts.num_linear else 0


def page_bytes(facts: ModelFacts, cache: CacheChoice) -> int:
    """Keys and values of one page, all full-attention layers."""
    return cache.page_size * facts.kv_elements_per_token * cache.kv_bytes_per_element


def num_pages(pool: int, page_size: int, requests: int) -> int:
    """Pages of a pool (D2): any `requests` requests whose lengths sum to `pool` fit beside the sentinel."""
    return -(-pool // page_size) + (requests - 1) + 1


def kv_line(facts: ModelFacts, cache: CacheChoice, pool: int, requests: int) -> Line:
    """Pages for a pool of tokens."""
    pages = num_pages(pool, cache.page_size, requests)
    return line(
        "kv_pages",
        unit_bytes=page_bytes(facts, cache),
        count=pages,
        unit="page",
        kind="per_token",
        because=f"{pool:,} tokens in pages of {cache.page_size}, {requests - 1} for rounding, "
        f"1 sentinel; {cache.kv_dtype}",
    )


def parked_line(laid: Laid, span: int, chunk: int) -> Line:
    """Hidden states of an open span; nothing where prefill is chunk-major."""
    return line(
        "parked_hidden",
        unit_bytes=laid.parked_bytes_per_token,
        count=-(-span // chunk) * chunk,
        unit="token",
        kind="per_token",
        because=f"hidden states of a span of {span:,} tokens between its layers",
    )


def expert_lines(slot_bytes: int, experts: ExpertSplit) -> tuple[Line, ...]:
    """Slots by role."""
    ranges = experts.slots_per_layer
    least, most = min(ranges), max(ranges)
    each = f"{least}" if least == most else f"{least} or {most}"
    staging = "both halves of whole-layer misses"
    if experts.waves > 1:
        staging = f"both halves of a ring that a layer's misses pass in {experts.waves} waves"
    return tuple(
        line(
            name,
            unit_bytes=slot_bytes,
            count=count,
            unit="slot",
            kind="per_slot",
            because=because,
        )
        for name, count, because in (
            ("experts.cache", sum(ranges), f"{each} slots for each of {len(ranges)} layers"),
            ("experts.staging", experts.staging_slots, f"{staging}, for prefill"),
            ("experts.overflow", experts.overflow_slots, "misses of decode in a held layer"),
        )
    )


def least_slots_line(slot_bytes: int, count: int) -> Line:
    """What offloading takes at least, in a plan that is refused."""
    return line(
        "experts",
        unit_bytes=slot_bytes,
        count=count,
        unit="slot",
        kind="per_slot",
        because="one slot a layer, staging and overflow: fewer cannot run",
    )


def bank_line(facts: ModelFacts, candidates: Candidates) -> Line:
    """Every expert, in host memory."""
    return _host_experts("bank", facts, candidates, "every expert: the device holds copies")


def restart_copy_line(facts: ModelFacts, candidates: Candidates) -> Line:
    """Every expert once more, where the next engine finds it (D11); never pinned."""
    return _host_experts(
        "restart_copy",
        facts,
        candidates,
        "every expert again: an engine that died comes back without reading the checkpoint's experts",
    )


def _host_experts(name: str, facts: ModelFacts, candidates: Candidates, because: str) -> Line:
    return line(
        name,
        unit_bytes=candidates.bank_row_bytes,
        count=facts.total_experts,
        unit="expert",
        because=because,
    )


def base_host_lines(machine: Machine, laid: Laid) -> tuple[Line, ...]:
    """Host lines that neither the bank nor the snapshots change."""
    return (
        line(
            "pinned_io",
            unit_bytes=laid.host_input_bytes,
            count=2,
            because="inputs and results of two steps in flight",
        ),
        line(
            "process",
            unit_bytes=PROCESS_BYTES[machine.kind],
            source="documented",
            because="interpreters and libraries of server and engine",
        ),
    )


def pinned_bytes(lines: Iterable[Line]) -> int:
    """What of these host lines must be pinned before the engine is ready."""
    return sum(part.bytes for part in lines if part.name != "process")


def snapshot_line(cache: CacheChoice, count: int, left: int) -> Line:
    """States of linear layers at page boundaries, for prefix hits."""
    return line(
        "snapshots",
        unit_bytes=cache.state_bytes_per_sequence,
        count=count,
        unit="sequence",
        kind="per_sequence",
        because=f"8 for each request, at least 16, at most 1/8 of the {size(left)} that the host has left",
    )
