"""How many of the experts that a decode step routes to are on the device, by residency and batch."""

import itertools
from math import log2

from firmtoken.compiler.estimate_constants import BATCHES, Points


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
    return interpolate(BATCHES[-1][1], fraction)


def interpolate(points: Points, at: float) -> float:
    """Piecewise linear; constant beyond the ends."""
    if at <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in itertools.pairwise(points):
        if at <= right:
            return low + (high - low) * (at - left) / (right - left)
    return points[-1][1]
