"""A step's digest: the same however rows and weights are shared out, another one where a bit is another."""

import hashlib
from dataclasses import replace

from rljob_runtime.record.digests import (
    RankDigest,
    RowSums,
    broken_links,
    digest_of,
    first_difference,
)
from rljob_runtime.record.event_types import Digest

ROWS = {(0, 0): b"abc", (0, 1): b"abd", (1, 0): b"", (1, 1): b"abc"}


def rank(*keys: tuple[int, int], weights: dict[str, int] | None = None) -> RankDigest:
    """One that trained on these rows."""
    rows = RowSums()
    for key in keys:
        rows.add("batch", key, [ROWS[key], b"x"])
        rows.add("rewards", key, [b"r"])
    return RankDigest(rows=rows, weights=weights or {})


def chain_of(*numbers: int) -> dict[int, Digest]:
    """Digests of steps from 1 on, which differ by their weights."""
    steps: dict[int, Digest] = {}
    for step, number in enumerate(numbers, 1):
        previous = steps[step - 1].chain if step > 1 else ""
        steps[step] = digest_of([rank(weights={"all": number})], previous=previous)
    return steps


def test_rows_may_be_anywhere_and_in_any_order():
    together = digest_of([rank(*ROWS)], previous="")
    apart = digest_of([rank((1, 1), (0, 1)), rank((1, 0)), rank((0, 0))], previous="")

    assert together == apart


def test_a_row_at_another_place_and_a_cut_elsewhere_are_told_apart():
    own = RowSums()
    own.add("batch", (0, 0), [b"abc", b"x"])
    moved, cut = RowSums(), RowSums()
    moved.add("batch", (0, 1), [b"abc", b"x"])
    cut.add("batch", (0, 0), [b"ab", b"cx"])

    assert len({own.batch, moved.batch, cut.batch}) == 3


def test_weights_that_replicas_hold_count_once_and_those_that_differ_do_not_pass():
    whole = digest_of([rank(weights={"norms": 7, "first half": 2**64 - 1})], previous="")
    replicas = [rank(weights={"norms": 7, "first half": 2**64 - 1})] * 2
    parted = [*replicas, rank(weights={"norms": 8})]

    assert whole.weights == f"{6:016x}"
    assert digest_of(replicas, previous="").weights == whole.weights
    assert digest_of(parted, previous="").weights != whole.weights


def test_the_chain_is_the_hash_of_the_one_before_and_the_links():
    first, second = chain_of(5, 6).values()

    text = " ".join((first.chain, second.prompts, second.batch, second.rewards, second.weights))
    assert second.chain == hashlib.sha256(text.encode()).hexdigest()


def test_a_changed_link_breaks_the_chain_there_and_is_named():
    steps = chain_of(5, 6, 7)
    changed = steps | {2: replace(steps[2], weights=f"{9:016x}")}

    assert [*broken_links(steps)] == []
    assert [*broken_links(changed)] == [2]
    assert first_difference(steps[2], changed[2]) == "weights"
    assert [*broken_links({3: steps[3]})] == []
