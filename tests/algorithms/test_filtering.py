"""PF-PPO's filter: which samples of a prompt are trained on."""

import pytest
import torch

from rljob_api.spec.algorithms.sampling import SampleFilter
from rljob_runtime.algorithms.filtering import filter_samples, rank_weights, sample_weights
from rljob_runtime.samples.sample import SampleBatch


def batch_of(*groups: list[float]) -> SampleBatch:
    rewards = [reward for group in groups for reward in group]
    return SampleBatch(
        prompts=[torch.tensor([7, number]) for number in range(len(groups))],
        group_of_B=torch.tensor([i for i, group in enumerate(groups) for _ in group]),
        responses=[torch.tensor([i]) for i in range(len(rewards))],
        scalars={"reward": torch.tensor(rewards)},
    )


@pytest.mark.parametrize(
    ("strategy", "weights"),
    [
        ("best-of-n", [1, 0, 0, 0]),
        ("best-random", [1 / 2, 1 / 6, 1 / 6, 1 / 6]),
        ("best-worst", [1 / 2, 0, 0, 1 / 2]),
    ],
)
def test_ranks_are_drawn_as_the_paper_says(strategy, weights):
    assert rank_weights(4, strategy).tolist() == pytest.approx(weights)
    assert rank_weights(1, strategy).tolist() == [1]


def test_samples_of_equal_reward_have_equal_chances():
    got = sample_weights(torch.tensor([0.0, 1.0, 0.0, 1.0]), "best-worst")

    assert got.tolist() == [0.25] * 4
    assert sample_weights(torch.tensor([0.0, 1.0, 0.5]), "best-of-n").tolist() == [0, 1, 0]


def test_draws_come_as_often_as_their_weights_say():
    chosen = SampleFilter(strategy="best-random", keep=1)
    batch, counts = batch_of([0.1, 0.9, 0.5, 0.3]), torch.zeros(4)

    for seed in range(2000):
        counts[int(filter_samples(batch, chosen, seed=seed).responses[0])] += 1

    expected = torch.tensor([1 / 6, 1 / 2, 1 / 6, 1 / 6])
    torch.testing.assert_close(counts / 2000, expected, atol=0.05, rtol=0)


def test_a_groups_draw_does_not_depend_on_the_groups_beside_it():
    groups, chosen = ([0.1, 0.9, 0.5], [0.7, 0.2, 0.3]), SampleFilter(keep=2)
    whole = filter_samples(batch_of(*groups), chosen, seed=5)

    alone = filter_samples(batch_of(*groups).select([3, 4, 5]), chosen, seed=5)

    assert [int(r) for r in whole.responses[2:]] == [int(r) for r in alone.responses]


def test_every_group_keeps_as_many_samples_each_with_its_columns():
    batch = batch_of([0.1, 0.9], [0.7, 0.2])
    batch.scalars["advantage"] = torch.tensor([-1.0, 1.0, 2.0, -2.0])

    got = filter_samples(batch, SampleFilter(strategy="best-of-n", keep=1), seed=0)

    assert got.scalars["advantage"].tolist() == [1.0, 2.0]
    assert got.group_of_B.tolist() == [0, 1]
