"""What one launch reads, computes and copies; over a program these add up to what `speed.py` counts as a whole.

Left out here as there: activations and tables. Bytes and FLOP are expectations, so they are no integers; padded rows
are in the seconds alone.
"""

from dataclasses import dataclass, replace
from math import prod

from firmtoken.compiler.costs import Costs
from firmtoken.compiler.facts import ModelFacts, TensorFacts
from firmtoken.compiler.kernel_times import few_rows_s, layer_attention_s, many_rows_s, read_s
from firmtoken.compiler.program import BoundStep
from firmtoken.compiler.speed import (
    chain_s,
    chunk_experts_s,
    distinct_experts,
    routed_decode_s,
)
from firmtoken.compiler.tensor_bytes import ELEMENT_BYTES

EXPERT_PARTS = {"moe_gate_up": 2 / 3, "moe_down": 1 / 3}
"""Of an expert's three matrices, all of one size, the part that each op reads."""

LOOKED_UP = ("embed", "prescribe")
"""Ops that read one row of a table for each token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """How much one launch gets."""

    tokens: int
    sequences: int
    depth: int
    """Tokens of each sequence that lie before these."""
    decodes: bool
    """Whether it is a decode step: then keys and values count as bytes; in a prefill they are hidden by arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a launch moves and computes."""

    device_bytes: float = 0.0
    flop: float = 0.0
    link_bytes: float = 0.0
    """From host memory over the link."""
    seconds: float = 0.0
    """What the device's part of it takes, beyond what any launch takes."""


def load_of(bound: BoundStep, facts: ModelFacts, costs: Costs, rows: Rows) -> Load:
    """Load of a launch, copies of experts excepted: those depend on what is missing."""
    op, machine = bound.step.op, costs.machine
    tensors = _tensors(bound, facts)
    if op in LOOKED_UP:
        (table,) = tensors
        row = float(table.shape[1] * ELEMENT_BYTES[table.dtype])
        read = rows.tokens * row
        return Load(device_bytes=read, seconds=read_s(machine, read))
    matrices = sum(prod(t.shape) for t in tensors if len(t.shape) == 2)
    by_sequence = bound.step.rows == "sequences"
    count = rows.sequences if by_sequence else rows.tokens
    read = float(sum(tensor.bytes for tensor in tensors)) + _states_bytes(op, facts, costs, rows)
    products = few_rows_s if rows.decodes or by_sequence else many_rows_s
    load = Load(
        device_bytes=read,
        flop=2.0 * count * matrices,
        seconds=read_s(machine, read) + products(machine, matrices, count),
    )
    if op in EXPERT_PARTS:
        return _with_experts(load, EXPERT_PARTS[op], costs, rows)
    if op == "attention":
        pairs = rows.tokens * (rows.depth + rows.tokens / rows.sequences / 2)
        flop = pairs * costs.flops_per_pair / facts.num_full
        seconds = 0.0
        if not rows.decodes:
            seconds = layer_attention_s(machine, flop, rows.depth + rows.tokens)
        return replace(load, flop=load.flop + flop, seconds=load.seconds + seconds)
    if op == "gdn" and not rows.decodes:
        return replace(load, seconds=load.seconds + chain_s(costs, rows.tokens))
    return load


def _with_experts(load: Load, part: float, costs: Costs, rows: Rows) -> Load:
    """A launch of routed experts, of all those that its tokens visit."""
    read = part * distinct_experts(costs, rows.tokens) * costs.slot_bytes
    if rows.decodes:
        seconds = read_s(costs.machine, read) + part * routed_decode_s(costs, rows.tokens)
    else:
        seconds = part * chunk_experts_s(costs, rows.tokens)
    return Load(
        device_bytes=load.device_bytes + read,
        flop=load.flop + part * 2 * rows.tokens * costs.routed * costs.one_expert,
        seconds=load.seconds + seconds,
    )


def _states_bytes(op: str, facts: ModelFacts, costs: Costs, rows: Rows) -> float:
    """Keys and values that a decode step reads, states that it reads and writes."""
    if rows.decodes and op == "attention":
        return rows.sequences * rows.depth * costs.kv_bytes_per_token / facts.num_full
    if rows.decodes and op == "gdn":
        return 2 * rows.sequences * costs.state_bytes / facts.num_linear
    return 0.0


def _tensors(bound: BoundStep, facts: ModelFacts) -> tuple[TensorFacts, ...]:
    named = {tensor.name: tensor for tensor in facts.tensors}
    return tuple(named[weight.name] for weight in bound.weights)
