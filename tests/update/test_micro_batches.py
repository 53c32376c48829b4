"""Micro-batches by a budget of tokens: none has more, and each sample is in one."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from forked_ranks import on_ranks
from hypothesis import given
from hypothesis import strategies as st

from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.worker.micro_batches import (
    MicroBatch,
    MicroBatches,
    count_tokens,
    pad_to_same_count,
    score,
)

LONGEST = 12
Groups = list[tuple[int, list[tuple[int, bool]]]]
"""Of each group the prompt's length, and of each sample its response's length and whether it teaches."""

GROUPS = st.lists(
    st.tuples(
        st.integers(1, LONGEST),
        st.lists(st.tuples(st.integers(0, LONGEST), st.booleans()), min_size=1, max_size=6),
    ),
    max_size=8,
)


def batches(groups: Groups) -> list[SampleBatch]:
    """One a group; a response's tokens are all its sample's number, which no other has."""
    made, number = [], 0
    for prompt, samples in groups:
        numbers = range(number, number + len(samples))
        number += len(samples)
        made.append(
            SampleBatch(
                prompts=[torch.zeros(prompt, dtype=torch.int64)],
                group_of_B=torch.zeros(len(samples), dtype=torch.int64),
                responses=[
                    torch.full((length,), one)
                    for one, (length, _) in zip(numbers, samples, strict=True)
                ],
                scalars={
                    "advantage": torch.tensor([float(teaches) for _, teaches in samples]),
                    "number": torch.tensor(numbers),
                },
            )
        )
    return made


def cut(groups: Groups, tokens: int) -> Iterator[MicroBatch]:
    cutting = MicroBatches(size=1, all_teach=False, tokens=tokens)
    for group in batches(groups):
        yield from cutting.add(group)
    yield from cutting.remaining()


def numbers(micro_batches: list[MicroBatch], *, teaches: bool) -> list[int]:
    return [
        number
        for one in micro_batches
        if one.teaches == teaches
        for number in one.samples.scalars["number"].tolist()
    ]


@given(groups=GROUPS, tokens=st.integers(2 * LONGEST, 5 * LONGEST))
def test_none_has_more_tokens_and_each_sample_is_in_one(groups: Groups, tokens: int) -> None:
    found = list(cut(groups, tokens))

    flat = [teaches for _, samples in groups for _, teaches in samples]
    for kind in (True, False):
        expected = [number for number, teaches in enumerate(flat) if teaches == kind]
        assert numbers(found, teaches=kind) == expected
    assert all(count_tokens(one.samples) <= tokens for one in found)


@given(groups=GROUPS, tokens=st.integers(2 * LONGEST, 5 * LONGEST))
def test_it_ends_only_where_the_next_sample_would_be_too_much(groups: Groups, tokens: int) -> None:
    found = list(cut([(p, [(r, True) for r, _ in samples]) for p, samples in groups], tokens))

    for one, following in pairwise(found):
        head = following.samples.select([0])
        prompts = [group for group, members in enumerate(groups) for _ in members[1]]
        same = (
            prompts[int(one.samples.scalars["number"][-1])]
            == prompts[int(head.scalars["number"][0])]
        )
        cost = head.num_tokens if same else count_tokens(head)
        assert count_tokens(one.samples) + cost > tokens


def test_groups_are_split_and_their_prompt_is_in_each_part() -> None:
    [first, second] = cut([(10, [(5, True), (5, True), (5, True)])], tokens=20)

    assert [first.samples.num_samples, second.samples.num_samples] == [2, 1]
    assert [len(one.samples.prompts) for one in (first, second)] == [1, 1]


def test_ranks_whose_passes_meet_make_equally_many_of_each_kind() -> None:
    shares: list[Groups] = [
        [(8, [(12, True)] * 4 + [(1, False)])],
        [(8, [(1, True)] * 4 + [(12, False)] * 3)],
    ]

    def kinds(rank: int) -> list[tuple[bool, int]]:
        own = cut(shares[rank], tokens=24)
        return [
            (one.teaches, one.samples.num_samples)
            for one in pad_to_same_count(own, dist.group.WORLD)
        ]

    first, second = on_ranks(2, kinds)

    assert first == [(True, 1)] * 4 + [(False, 1), (False, 0), (False, 0)]
    assert second == [(True, 4)] + [(True, 0)] * 3 + [(False, 1)] * 3


@pytest.mark.parametrize("tokens", [24, 40, 1000])
def test_scoring_in_passes_gives_the_samples_in_their_order(tokens: int) -> None:
    samples = SampleBatch.join(batches([(8, [(12, True), (3, True)]), (2, [(9, True), (0, True)])]))
    passes: list[int] = []

    def logprobs(part: SampleBatch) -> torch.Tensor:
        passes.append(count_tokens(part))
        return torch.cat(part.responses).float()

    found = score(samples, logprobs, tokens=tokens, group=None)

    assert found.equal(torch.cat(samples.responses).float())
    assert max(passes) <= tokens
    assert len(passes) == {24: 2, 40: 1, 1000: 1}[tokens]


def test_ranks_whose_passes_meet_score_equally_often() -> None:
    shares: list[Groups] = [[(8, [(12, True)] * 3)], [(8, [(1, True)])]]

    def run(rank: int) -> tuple[int, int]:
        [samples] = batches(shares[rank])
        passes = 0

        def logprobs(part: SampleBatch) -> torch.Tensor:
            nonlocal passes
            passes += 1
            dist.barrier()  # as a pass that needs the other rank
            return torch.zeros(part.num_tokens)

        found = score(samples, logprobs, tokens=20, group=dist.group.WORLD)
        return passes, len(found)

    assert on_ranks(2, run) == [(3, 36), (3, 1)]
