"""What one launch reads, computes and copies; over a program these add up to what `speed.py` counts as a whole.

Left out here as there: activations, tables, padded rows. Bytes and FLOP are expectations, so they are no integers.
"""

from dataclasses import dataclass
from math import prod

from firmtoken.compiler.facts import ModelFacts, TensorFacts
from firmtoken.compiler.program import BoundStep
from firmtoken.compiler.speed import Costs, distinct_experts
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
    reads_kv: bool
    """Whether keys and values count as bytes: they do in a decode step; in a prefill they are hidden by arithmetic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a launch moves and computes."""

    device_bytes: float = 0.0
    flop: float = 0.0
    link_bytes: float = 0.0
    """From host memory over the link."""


def load_of(bound: BoundStep, facts: ModelFacts, costs: Costs, rows: Rows) -> Load:
    """Load of a launch, copies of experts excepted: those depend on what is missing."""
    op = bound.step.op
    if op in LOOKED_UP:
        (table,) = _tensors(bound, facts)
        return Load(device_bytes=rows.tokens * table.shape[1] * ELEMENT_BYTES[table.dtype])
    read = float(sum(tensor.bytes for tensor in _tensors(bound, facts)))
    matrices = sum(prod(t.shape) for t in _tensors(bound, facts) if len(t.shape) == 2)
    count = rows.sequences if bound.step.rows == "sequences" else rows.tokens
    flop = 2.0 * count * matrices
    if op in EXPERT_PARTS:
        part = EXPERT_PARTS[op]
        read += part * distinct_experts(costs, rows.tokens) * costs.slot_bytes
        flop += part * 2 * rows.tokens * costs.routed * facts.expert_parameters
    elif op == "attention":
        pairs = rows.tokens * (rows.depth + rows.tokens / rows.sequences / 2)
        flop += pairs * costs.flops_per_pair / facts.num_full
        if rows.reads_kv:
            read += rows.sequences * rows.depth * costs.kv_bytes_per_token / facts.num_full
    elif op == "gdn" and rows.reads_kv:
        read += 2 * rows.sequences * costs.state_bytes / facts.num_linear
    return Load(device_bytes=read, flop=flop)


def _tensors(bound: BoundStep, facts: ModelFacts) -> tuple[TensorFacts, ...]:
    named = {tensor.name: tensor for tensor in facts.tensors}
    return tuple(named[weight.name] for weight in bound.weights)
