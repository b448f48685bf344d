"""Every constant of the estimate, with unit and source: the same for all machines, models and profiles.

What our kernels do with a card's data sheet was measured on one H200 (runtime/kernels/NOTES.md, 2026-12-01) and is
taken for every other card too, on which nothing was measured. Those of kernels were timed kernel by kernel; LAUNCH_S,
EARLY_LAUNCH_S, STEP_HOST_S, PREFILL_LAYER_S, WALK_LAYER_S and FIRST_TOKEN_HOST_S are what whole steps and prompts leave
beside them, some of them from one measurement. `tests/runtime/bench/test_measured_h200.py` holds the sum. What was
predicted before anybody had measured is kept in `tests/compiler/cases/predictions-h200-qwen.yaml`.
Sources: NOTES.md of the kernels; performance.md and prototype.md of the facts; DEFINITIONS.md (D).
"""

Points = tuple[tuple[float, float], ...]

BANDWIDTH_SHARE = 0.8
"""Of the memory's bandwidth, where a kernel only reads: 0.80 in bf16 attention over 131,072 tokens, 0.89 in copies
(NOTES.md; performance.md, first table). Decoding and products come after the bytes, not beside them."""
DECODING = 3.6
"""Instructions of a lane that make a number of one weight: NVFP4 in tiles 3.6, FP8 with one row 3.4 (NOTES.md)."""
MULTIPLYING = 1.7
"""Instructions more for each row that it is multiplied with outside tensor cores: 5 to 5.6 a weight with one row, 9.8
in FP8 with four (NOTES.md)."""
LANE_ROWS = 4
"""Up to so many rows lanes multiply; tensor cores, which take 1 to 16 rows alike, pay from there on (NOTES.md)."""
PRODUCT_SHARE = 0.45
"""Of dense peak arithmetic, in tiles on tensor cores, decoding apart: 0.49 in FP8, 0.38 in gate and up of NVFP4 with
its decoding (NOTES.md); 74 of 165 TFLOP/s on a 4090 (performance.md 2.3)."""
ATTENTION_SHARE = 0.37
"""The same of attention over a prompt: 2,048 rows behind 0 to 131,072 tokens reach 0.35 to 0.54 with heads of 256, 0.30
to 0.38 with 128, FP8 pages as BF16 (NOTES.md)."""
ATTENTION_BLOCK = 64
"""Tokens that rows of a prompt go through at a time (NOTES.md)."""
ATTENTION_BLOCK_S = 2.1e-6
"""Least seconds of it: 1,057 us for 128 rows behind 32,768 tokens, before they were shared out (NOTES.md)."""
TILE_ROWS = (16, 128)
"""Least and most rows of a tile. Weights are decoded once for each, and of an expert's last one half is padding
(NOTES.md; runtime/kernels/tile_shapes.py)."""
GDN_CHUNK_S = 6.5e-6
"""Seconds of a linear layer for each chunk of a prompt, one after the other: 4.7 ms for 24 chunks and
18.6 for 94, in 30 layers (NOTES.md)."""
LAUNCH_S = 2.6e-6
"""Seconds of a launch in a captured decode step that neither bytes nor instructions explain (NOTES.md, whole steps:
2,026 us, no launch early, are 373 of them and 1,060 us of work)."""
EARLY_LAUNCH_S = 1.6e-6
"""The same where a launch starts before the one before it has ended: 1,637 us greedy, 1,709 with top-p (NOTES.md)."""
PREFILL_LAYER_S = 90e-6
"""Seconds of a layer of a prompt, however short: 17 launches, whose programs are too few to fill a card, take 4 to 8 us
each beyond their bytes and FLOP (NOTES.md: prompts of one token and of 108)."""
STEP_HOST_S = 20e-6
"""Seconds of a decode step in which the device waits for the host, which runs a step ahead: 22 us
(NOTES.md, the engine alone)."""
WALK_LAYER_S = 2e-3
"""Seconds in which the host launches one layer of a prompt that no graph holds: 56 to 105 ms for the 40 layers of 3,008
to 6,008 tokens, everything resident (NOTES.md)."""
FIRST_TOKEN_HOST_S = 1.5e-3
"""Seconds of a first token beyond its kernels: batch, launch of the graph and draw, 108 and 1,508 tokens (NOTES.md)."""
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
