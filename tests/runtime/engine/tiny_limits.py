"""Limits so small that a few requests fill an engine: 16 pages of 4 tokens."""

from dataclasses import replace

from firmtoken.runtime.engine.limits import Limits

TINY = Limits(
    page_size=4,
    pages=1 + 16,
    state_slots=7,
    snapshot_slots=6,
    hybrid=True,
    caching=True,
    max_num_seqs=3,
    prefill_span=16,
    graph_batch_sizes=(1, 2, 3),
    prefill_graph_rows=(),
    offload=True,
    on_demand_cold=4,
    on_demand_warm=8,
    decode_every_units=2,
    output_reserve=8,
    max_preemptions=2,
    max_passes=4,
    effective_context=64,
)
PLAIN = replace(TINY, hybrid=False, state_slots=0, snapshot_slots=0)
"""Of a model without states."""
