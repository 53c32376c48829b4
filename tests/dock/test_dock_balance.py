"""Groups over ranks: equal counts, nearly equal lengths."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.dock.balance import balanced, imbalance

LENGTHS = st.lists(st.integers(0, 10_000), max_size=40)


def differencing(lengths: list[int], parts: int) -> list[list[int]]:
    """Karmarkar and Karp's largest differencing ("The differencing method of set partitioning", 1982)
    with parts of equal counts: rows of k items, of which the two widest are joined crosswise."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    rows = [[[i] for i in order[first : first + parts]] for first in range(0, len(order), parts)]

    def total(items: list[int]) -> int:
        return sum(lengths[i] for i in items)

    while len(rows) > 1:
        rows.sort(key=lambda row: total(row[0]) - total(row[-1]))
        widest, other = rows.pop(), rows.pop()
        joined = [a + b for a, b in zip(widest, reversed(other), strict=True)]
        rows.append(sorted(joined, key=total, reverse=True))
    return rows[0]


@given(lengths=LENGTHS, parts=st.integers(1, 9))
def test_every_item_is_in_one_part_and_the_parts_have_equal_counts(lengths, parts) -> None:
    chosen = balanced(lengths, parts)

    assert sorted(itertools.chain(*chosen)) == list(range(len(lengths)))
    counts = [len(items) for items in chosen]
    assert len(counts) == parts
    assert counts == sorted(counts, reverse=True) and max(counts) - min(counts) <= 1


@given(
    lengths=st.lists(st.integers(0, 100), min_size=2, max_size=8).filter(lambda x: len(x) % 2 == 0)
)
def test_two_parts_are_near_the_best_of_all_splits(lengths) -> None:
    half = range(len(lengths))
    splits = itertools.combinations(half, len(lengths) // 2)
    best = min(
        max(sum(lengths[i] for i in split), sum(lengths) - sum(lengths[i] for i in split))
        for split in splits
    )

    longest = max(sum(lengths[i] for i in items) for items in balanced(lengths, 2))

    assert longest - best <= (max(lengths) - min(lengths)) / 2


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_ranks_are_nearer_to_each_other_than_by_differencing_or_in_turn(parts: int) -> None:
    rng = np.random.default_rng(5)
    ours, theirs, in_turn = [], [], []
    for _ in range(20):
        lengths = np.minimum(rng.lognormal(6.0, 0.8, size=128), 4096).astype(int).tolist()
        ours.append(imbalance(lengths, balanced(lengths, parts)))
        theirs.append(imbalance(lengths, differencing(lengths, parts)))
        in_turn.append(imbalance(lengths, [range(rank, 128, parts) for rank in range(parts)]))

    assert max(ours) < 1.001
    assert np.mean(ours) - 1 < (np.mean(theirs) - 1) / 2
    assert np.mean(in_turn) > 1.05


def test_no_time_is_lost_on_many_items() -> None:
    lengths = np.random.default_rng(0).integers(1, 4096, size=4096).tolist()

    assert imbalance(lengths, balanced(lengths, 64)) < 1.001
