"""The constant cost of a pass of the update, from passes of all sizes. Pure; called by `remedies`."""

import statistics
from collections.abc import Sequence
from itertools import combinations

MOST_PASSES = 200
FEWEST_PASSES = 8
SMALLEST_SPREAD = 0.2
"""Smallest spread of the sizes, between the tenth and the ninetieth percentile, relative to their median.
With a smaller spread no cost is computed."""


def fixed_seconds(passes: Sequence[tuple[float, float]]) -> float | None:
    """Estimate the constant seconds of one pass, or return None if too few passes differ.

    passes: tokens and seconds. Uses the median slope between all pairs (Theil and Sen), which outliers move
    little.
    """
    stride = -(-len(passes) // MOST_PASSES) or 1
    sampled = passes[::stride]
    if len(sampled) < FEWEST_PASSES:
        return None
    sizes = sorted(tokens for tokens, _ in sampled)
    middle = statistics.median(sizes)
    if sizes[-1 - len(sizes) // 10] - sizes[len(sizes) // 10] < SMALLEST_SPREAD * middle:
        return None
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(sampled, 2) if a[0] != b[0]]
    slope = max(statistics.median(slopes), 0.0)
    fixed = statistics.median(seconds - slope * tokens for tokens, seconds in sampled)
    return max(fixed, 0.0)
