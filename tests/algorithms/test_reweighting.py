"""The step's samples drawn anew by their rewards, over the whole batch."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from rljob_api.spec.algorithms.sampling import BatchReweighting
from rljob_runtime.algorithms.reweighting import reward_weights, reweight_samples
from rljob_runtime.samples.sample import SampleBatch

REWARDS = [[0.0, 1.0, -2.0], [0.5, 1.0, 0.0]]


def groups_of(rewards):
    """Each sample's response is one token: its number."""
    numbers = iter(range(100))
    return [
        SampleBatch(
            prompts=[torch.tensor([7, place])],
            group_of_B=torch.zeros(len(group), dtype=torch.int64),
            responses=[torch.tensor([next(numbers)]) for _ in group],
            scalars={"reward": torch.tensor(group), "advantage": torch.tensor(group) - 0.25},
        )
        for place, group in enumerate(rewards)
    ]


def drawn(groups, *, seed, **chosen):
    """Numbers of the samples that one rank draws, by group."""
    found = reweight_samples(
        groups, BatchReweighting(**chosen), seed=seed, share=(0, 1), add_up=lambda values: None
    )
    return [[int(response) for response in group.responses] for group in found]


@pytest.mark.parametrize(
    ("chosen", "weights"),
    [
        ({"weights": "power"}, [0, 1, 4, 0.25]),
        ({"weights": "power", "power": 1.0}, [0, 1, 2, 0.5]),
        ({"weights": "max-min"}, [0, 1, 1, 0]),
        ({"weights": "max-random"}, [0.1, 0.4, 0.1, 0.1]),
    ],
)
def test_weights_are_those_of_verl(chosen, weights):
    got = reward_weights(
        torch.tensor([0.0, 1.0, -2.0, 0.5], dtype=torch.float64), BatchReweighting(**chosen)
    )

    assert got.tolist() == pytest.approx([weight + 1e-8 for weight in weights], abs=1e-15)


def test_samples_come_as_often_as_their_weights_say():
    counts = torch.zeros(6)

    for seed in range(400):
        for group in drawn(groups_of(REWARDS), seed=seed):
            counts += torch.bincount(torch.tensor(group, dtype=torch.int64), minlength=6)

    expected = torch.tensor([0, 1, 4, 0.25, 1, 0]) / 6.25
    torch.testing.assert_close(counts / counts.sum(), expected, atol=0.05, rtol=0)


def test_as_many_samples_are_drawn_as_there_are_each_with_its_columns():
    found = reweight_samples(
        groups_of(REWARDS),
        BatchReweighting(),
        seed=3,
        share=(0, 1),
        add_up=lambda values: None,
    )

    assert sum(group.num_samples for group in found) == 6
    for group in found:
        rewards = torch.tensor(REWARDS).flatten()[[int(token) for token in group.responses]]
        assert group.scalars["advantage"].tolist() == (rewards - 0.25).tolist()


@pytest.mark.parametrize("shares", [([1], [0]), ([1, 3, 0], [2])], ids=["even", "uneven"])
def test_two_ranks_draw_together_what_one_draws(shares):
    groups = groups_of([*REWARDS, [1.0, 0.0, 2.0], [0.0, 0.5, 0.5]][: sum(map(len, shares))])
    whole = drawn(groups, seed=11)
    met, told = Barrier(2, timeout=60), [torch.zeros(0)] * 2

    def draw(rank):
        def add_up(values):
            told[rank] = values.clone()
            met.wait()
            values.copy_(told[0] + told[1])
            met.wait()

        own = [groups[place] for place in shares[rank]]
        return reweight_samples(own, BatchReweighting(), seed=11, share=(rank, 2), add_up=add_up)

    with ThreadPoolExecutor(2) as ranks:
        found = list(ranks.map(draw, range(2)))

    for own, places in zip(found, shares, strict=True):
        numbers = [[int(token) for token in group.responses] for group in own]
        assert numbers == [whole[place] for place in places]


def test_a_batch_without_any_reward_is_drawn_evenly():
    counts = torch.zeros(4)

    for seed in range(400):
        for group in drawn(groups_of([[0.0, 0.0], [0.0, 0.0]]), seed=seed):
            counts += torch.bincount(torch.tensor(group, dtype=torch.int64), minlength=4)

    torch.testing.assert_close(counts / counts.sum(), torch.full((4,), 0.25), atol=0.05, rtol=0)
