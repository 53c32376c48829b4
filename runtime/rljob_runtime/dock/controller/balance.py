"""Groups of samples over data-parallel ranks: the same number each, and nearly the same length. Pure.

A step lasts as long as its slowest rank, so its ranks should have equal work. With parts of equal
counts, giving the longest first and then exchanging leaves a tenth of what Karmarkar and Karp's
differencing leaves, or less (tests/dock/test_dock_balance.py compares them).
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

CLOSE_ENOUGH = 1.0005
"""The longest part over the mean at which exchanging ends."""


def balanced(lengths: Sequence[int], parts: int) -> list[list[int]]:
    """Places of the items of each part, in order; the first parts have one item more where they must.

    Depends on the lengths and their order alone.
    """
    chosen = _longest_first(lengths, parts)
    totals = [sum(length for length, _ in items) for items in chosen]
    limit = CLOSE_ENOUGH * sum(totals) / parts
    while max(totals) > limit and _exchange(chosen, totals):
        continue
    return [sorted(place for _, place in items) for items in chosen]


def imbalance(lengths: Sequence[int], chosen: Sequence[Sequence[int]]) -> float:
    """The longest part over the mean of all, 1 at best: how much longer a step lasts."""
    totals = [sum(lengths[i] for i in items) for items in chosen]
    return max(totals) * len(totals) / sum(totals) if sum(totals) else 1.0


def _longest_first(lengths: Sequence[int], parts: int) -> list[list[tuple[int, int]]]:
    """(length, place) of each part's items: each item, the longest first, to the lightest with room."""
    room = [len(lengths) // parts + (i < len(lengths) % parts) for i in range(parts)]
    totals = [0] * parts
    chosen: list[list[tuple[int, int]]] = [[] for _ in range(parts)]
    for place in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        lightest = min(
            (i for i in range(parts) if len(chosen[i]) < room[i]), key=totals.__getitem__
        )
        totals[lightest] += lengths[place]
        insort(chosen[lightest], (lengths[place], place))
    return chosen


def _exchange(chosen: list[list[tuple[int, int]]], totals: list[int]) -> bool:
    """Exchange the two items that bring the longest part nearest to another; False: none helps."""
    longest = max(range(len(totals)), key=totals.__getitem__)
    best: tuple[int, int, tuple[int, int], tuple[int, int]] | None = None
    for part, items in enumerate(chosen):
        gap = totals[longest] - totals[part]
        for given in chosen[longest]:
            near = bisect_left(items, (given[0] - gap // 2, 0))
            for taken in items[max(0, near - 1) : near + 1]:
                moved = given[0] - taken[0]
                height = max(totals[longest] - moved, totals[part] + moved)
                if 0 < moved < gap and (best is None or height < best[0]):
                    best = height, part, given, taken
    if best is None:
        return False
    _, part, given, taken = best
    for at, away, come in ((longest, given, taken), (part, taken, given)):
        chosen[at].remove(away)
        insort(chosen[at], come)
        totals[at] += come[0] - away[0]
    return True
