"""Every constant of the estimate, with unit and source: the same for all machines, models and profiles.

None is fitted to one profile or one anchor: `tests/compiler/test_estimates.py` holds all anchors against all of them
at once. What they predicted before anybody had measured is kept in `tests/compiler/cases/predictions-h200-qwen.yaml`.
Sources: performance.md and prototype.md of the facts, DEFINITIONS.md (D).
"""

Points = tuple[tuple[float, float], ...]

DECODE_EFFICIENCY = 0.6
"""Share of the memory's bandwidth that a decode step reaches (performance.md 2.2: five public results together)."""
PREFILL_BANDWIDTH_EFFICIENCY = 0.8
"""The same for the long reads of a prefill (prototype.md 4)."""
PREFILL_EFFICIENCY = 0.45
"""Share of dense peak arithmetic: 74 of 165 TFLOP/s on a 4090, 450 of 989 on an H200 (performance.md 2.3)."""
LAYER_S = 20e-6
"""Seconds of a layer that neither bytes nor FLOP explain (performance.md 2.2)."""
KERNEL_S = 6e-6
"""Least seconds of a launch of a decode step: 370 take 2.2 ms where bytes do not count (performance.md 2.2)."""
ADMISSION_S = 12e-6
"""Seconds of a layer for its expert table where experts are offloaded (prototype.md 2.2)."""
ON_DEMAND_S = 30e-6
"""Seconds of a layer to route, read the miss list and start the fetch (prototype.md 4)."""

REFERENCE_PROMPT = 2_000
"""Uncached prompt tokens of the reference turn (D16)."""
REFERENCE_OUTPUT = 400
"""Tokens that the reference turn decodes (D16)."""
REFERENCE_DEPTH = 8 * 1024
"""Tokens that lie before a decoded token (D16)."""
PREFILL_PROBE = 8 * 1024
"""Tokens of the prompt whose speed is quoted (prototype.md 5: `prefill_tokens_per_s`)."""

# Steady state of one LRU per layer under the Q36 router, which reproduces the published points of Qwen3.6 to 1 %
# (performance.md 3.4): share of a layer's experts on the device -> share of a step's distinct experts missing there.
# Above 0.70 the values of prototype.md 2.2: the published ones there are compulsory misses of a short run.
MISSES_OF_1: Points = (
    (0.0, 1.0),
    (0.03, 0.98),  # fewer slots than a token visits: a cache keeps nothing (performance.md 3.1)
    (0.05, 0.64),
    (0.10, 0.44),
    (0.15, 0.35),
    (0.20, 0.29),
    (0.25, 0.25),
    (0.30, 0.21),
    (0.37, 0.16),
    (0.45, 0.12),
    (0.50, 0.10),
    (0.60, 0.06),
    (0.70, 0.03),
    (0.80, 0.011),
    (0.90, 0.003),
    (0.95, 0.002),
    (1.0, 0.0),
)
# Misses per layer and step over the union of a batch's experts: 29.7 for four sequences, 91.6 for sixteen (3.4).
MISSES_OF_4: Points = (
    (0.0, 1.0),
    (0.25, 0.404),
    (0.37, 0.273),
    (0.50, 0.172),
    (0.60, 0.121),
    (0.75, 0.054),
    (0.90, 0.0135),
    (0.97, 0.0034),
    (1.0, 0.0),
)
MISSES_OF_16: Points = (
    (0.0, 1.0),
    (0.25, 0.611),
    (0.37, 0.437),
    (0.50, 0.295),
    (0.60, 0.197),
    (0.75, 0.092),
    (0.90, 0.024),
    (0.97, 0.0044),
    (1.0, 0.0),
)
BATCHES = ((1, MISSES_OF_1), (4, MISSES_OF_4), (16, MISSES_OF_16))
"""Sequences of a batch and its table (performance.md 3.4)."""
