"""How many of the experts that a decode step routes to are on the device, by residency and batch.

Steady state of one LRU per layer under the Q36 router (facts/performance.md 3.4), which reproduces the published points
of Qwen3.6 to 1 %. Above f = 0.70 the values of facts/prototype.md 2.2: the published ones there are compulsory misses.
"""

import itertools
from collections.abc import Sequence
from math import log2

# (share of experts on the device, share of the distinct experts of a step that are missing there)
ONE = (
    (0.0, 1.0),
    (0.03, 0.98),  # fewer slots than a token visits: a cache keeps nothing
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
# Misses per layer and step over the union of the batch's experts: 29.7 for four sequences, 91.6 for sixteen.
FOUR = (
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
SIXTEEN = (
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
BATCHES = ((1, ONE), (4, FOUR), (16, SIXTEEN))


def hit_rate(fraction: float) -> float:
    """Share of one stream's routed experts that are on the device when `fraction` of all are."""
    return 1.0 - miss_rate(fraction, 1)


def miss_rate(fraction: float, sequences: int) -> float:
    """Share of a step's distinct experts that must be fetched; batches between the tables by their logarithm."""
    for (low, below), (high, above) in itertools.pairwise(BATCHES):
        if sequences <= high:
            weight = log2(sequences / low) / log2(high / low)
            lower, upper = interpolate(below, fraction), interpolate(above, fraction)
            return lower + weight * (upper - lower)
    return interpolate(SIXTEEN, fraction)


def interpolate(points: Sequence[tuple[float, float]], at: float) -> float:
    """Piecewise linear; constant beyond the ends."""
    if at <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in itertools.pairwise(points):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return points[-1][1]
