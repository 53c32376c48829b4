"""Groups of samples over data-parallel ranks: the same number each, and nearly the same length. Pure.

A step lasts as long as its slowest rank, so its ranks should have equal work. The algorithm is a greedy
assignment, longest first, followed by exchanges. With partitions of equal counts it leaves at most a tenth of
the imbalance that Karmarkar and Karp's differencing leaves. tests/dock/test_dock_balance.py compares them.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

CLOSE_ENOUGH = 1.0005
"""Ratio of the longest partition to the mean below which exchanging ends."""


def balance(lengths: Sequence[int], num_partitions: int) -> list[list[int]]:
    """Return the indices of each partition's items, in order; the first partitions get one item more if
    needed.

    The result depends on the lengths and their order alone.
    """
    partitions = _longest_first(lengths, num_partitions)
    totals = [sum(length for length, _ in items) for items in partitions]
    limit = CLOSE_ENOUGH * sum(totals) / num_partitions
    while max(totals) > limit and _exchange(partitions, totals):
        continue
    return [sorted(index for _, index in items) for items in partitions]


def imbalance(lengths: Sequence[int], chosen: Sequence[Sequence[int]]) -> float:
    """Return the longest partition over the mean, 1 at best: how much longer a step lasts."""
    totals = [sum(lengths[i] for i in items) for items in chosen]
    return max(totals) * len(totals) / sum(totals) if sum(totals) else 1.0


def _longest_first(lengths: Sequence[int], num_partitions: int) -> list[list[tuple[int, int]]]:
    """Assign each item, longest first, to the lightest partition with room; return (length, index) of the
    items."""
    capacities = [
        len(lengths) // num_partitions + (i < len(lengths) % num_partitions)
        for i in range(num_partitions)
    ]
    totals = [0] * num_partitions
    partitions: list[list[tuple[int, int]]] = [[] for _ in range(num_partitions)]
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        lightest = min(
            (i for i in range(num_partitions) if len(partitions[i]) < capacities[i]),
            key=totals.__getitem__,
        )
        totals[lightest] += lengths[index]
        insort(partitions[lightest], (lengths[index], index))
    return partitions


def _exchange(partitions: list[list[tuple[int, int]]], totals: list[int]) -> bool:
    """Exchange the two items that bring the longest partition nearest to another; return False if none
    helps."""
    longest = max(range(len(totals)), key=totals.__getitem__)
    best: tuple[int, int, tuple[int, int], tuple[int, int]] | None = None
    for partition, items in enumerate(partitions):
        gap = totals[longest] - totals[partition]
        for outgoing in partitions[longest]:
            candidate = bisect_left(items, (outgoing[0] - gap // 2, 0))
            for incoming in items[max(0, candidate - 1) : candidate + 1]:
                moved = outgoing[0] - incoming[0]
                height = max(totals[longest] - moved, totals[partition] + moved)
                if 0 < moved < gap and (best is None or height < best[0]):
                    best = height, partition, outgoing, incoming
    if best is None:
        return False
    _, partition, outgoing, incoming = best
    for target, removed, added in ((longest, outgoing, incoming), (partition, incoming, outgoing)):
        partitions[target].remove(removed)
        insort(partitions[target], added)
        totals[target] += added[0] - removed[0]
    return True
