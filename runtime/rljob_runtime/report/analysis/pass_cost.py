"""What a pass of the update costs whatever its size, from passes of all sizes. Pure; called by `remedies`."""

import statistics
from collections.abc import Sequence
from itertools import combinations

MOST_PASSES = 200
FEWEST_PASSES = 8
SMALLEST_SPREAD = 0.2
"""Of the sizes, between the tenth and the ninetieth percentile, of their median: with less, none is told."""


def fixed_seconds(passes: Sequence[tuple[float, float]]) -> float | None:
    """Of one pass. passes: tokens and seconds. None where too few differ.

    By the median slope between all pairs (Theil and Sen), which a pass that was held up moves little.
    """
    stride = -(-len(passes) // MOST_PASSES) or 1
    kept = passes[::stride]
    if len(kept) < FEWEST_PASSES:
        return None
    sizes = sorted(tokens for tokens, _ in kept)
    middle = statistics.median(sizes)
    if sizes[-1 - len(sizes) // 10] - sizes[len(sizes) // 10] < SMALLEST_SPREAD * middle:
        return None
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(kept, 2) if a[0] != b[0]]
    slope = max(statistics.median(slopes), 0.0)
    fixed = statistics.median(seconds - slope * tokens for tokens, seconds in kept)
    return max(fixed, 0.0)
