"""Groups over ranks: equal counts, nearly equal lengths."""

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.controller.balance import balance, imbalance
from rljob_runtime.dock.graph import State, StateGraph
from rljob_runtime.dock.rows import NewRow, Share
from rljob_runtime.errors import DockTimeout

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
    chosen = balance(lengths, parts)

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

    longest = max(sum(lengths[i] for i in items) for items in balance(lengths, 2))

    assert longest - best <= (max(lengths) - min(lengths)) / 2


@pytest.mark.parametrize("parts", [2, 4, 8])
def test_ranks_are_nearer_to_each_other_than_by_differencing_or_in_turn(parts: int) -> None:
    rng = np.random.default_rng(5)
    ours, theirs, in_turn = [], [], []
    for _ in range(20):
        lengths = np.minimum(rng.lognormal(6.0, 0.8, size=128), 4096).astype(int).tolist()
        ours.append(imbalance(lengths, balance(lengths, parts)))
        theirs.append(imbalance(lengths, differencing(lengths, parts)))
        in_turn.append(imbalance(lengths, [range(rank, 128, parts) for rank in range(parts)]))

    assert max(ours) < 1.001
    assert np.mean(ours) - 1 < (np.mean(theirs) - 1) / 2
    assert np.mean(in_turn) > 1.05


def test_no_time_is_lost_on_many_items() -> None:
    lengths = np.random.default_rng(0).integers(1, 4096, size=4096).tolist()

    assert imbalance(lengths, balance(lengths, 64)) < 1.001


def lengths_of_groups(seed: int, groups: int) -> list[int]:
    drawn = np.random.default_rng(seed).lognormal(3.0, 0.8, size=groups)
    return np.maximum(drawn, 1).astype(int).tolist()


def written(client: DockClient, batch: str, lengths: list[int], order: list[int]) -> None:
    """Groups of one row each, whose responses are written in that order."""
    rows = [
        NewRow(
            uid=f"{batch}/{g}",
            group=f"{batch}/{g}",
            group_index=g,
            columns={"prompt": np.zeros(1, dtype=np.int32)},
        )
        for g in range(len(lengths))
    ]
    client.put_rows(batch, rows, total=len(rows))
    claimed = {row.group_index: row for row in client.claim(batch, timeout_seconds=10).rows}
    for group in order:
        response = Ragged.from_rows([np.zeros(lengths[group], dtype=np.int32)])
        client.write([claimed[group]], {"response": response})


GRAPH = StateGraph(
    states=(
        State(name="generate", needs=("prompt",), writes=("response",)),
        State(name="update", needs=("response",)),
    )
)


def test_ranks_claim_as_many_groups_and_nearly_as_many_values(make_dock) -> None:
    dock = make_dock(graph=GRAPH)
    lengths = lengths_of_groups(1, 32)
    orders = {"forward": list(range(32)), "backward": list(range(31, -1, -1))}
    found: dict[str, list[list[int]]] = {}

    for batch, order in orders.items():
        written(dock.client("generate"), batch, lengths, order)
        claims = [
            dock.client("update").claim(batch, share=Share(rank, 4, 16), timeout_seconds=10)
            for rank in range(4)
        ]
        found[batch] = [[row.group_index for row in claim.rows] for claim in claims]

    assert found["forward"] == found["backward"]
    for first in (0, 16):  # each window by itself
        shares = [[g for g in share if first <= g < first + 16] for share in found["forward"]]
        assert sorted(itertools.chain(*shares)) == list(range(first, first + 16))
        assert {len(share) for share in shares} == {4}
        in_turn = [range(first + rank, first + 16, 4) for rank in range(4)]
        assert imbalance(lengths, shares) < imbalance(lengths, in_turn) - 0.1


def test_a_balanced_share_comes_window_by_window_in_order(make_dock) -> None:
    dock = make_dock(graph=GRAPH)
    generate, update = dock.client("generate"), dock.client("update")
    lengths = lengths_of_groups(2, 8)
    writing = threading.Thread(target=written, args=(generate, "b", lengths, [*range(8)]))
    writing.start()

    claims = [
        update.claim("b", share=Share(1, 2, 4), limit=1, timeout_seconds=10) for _ in range(4)
    ]
    writing.join()

    groups = [row.group_index for claim in claims for row in claim.rows]
    assert groups == sorted(groups)
    assert [sum(group // 4 == window for group in groups) for window in (0, 1)] == [2, 2]
    with pytest.raises(DockTimeout, match=r"worker holds 4 rows"):
        update.claim("b", share=Share(1, 2, 4), limit=1, timeout_seconds=0.2)
    for claim in claims:
        update.acknowledge(claim.rows)
    assert update.claim("b", share=Share(1, 2, 4), limit=1, timeout_seconds=10).done
    assert not update.claim("b", share=Share(0, 2, 4), limit=1, timeout_seconds=10).done
