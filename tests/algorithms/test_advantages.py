"""Group-relative advantages against verl and by hand."""

import math

import pytest
import torch

from rljob_runtime.algorithms.functional import group_advantages, groups_with_signal


@pytest.mark.parametrize(("scale", "oracle"), [(True, "grpo_adv_std"), (False, "drgrpo_adv")])
def test_advantages_are_those_of_verl(oracles, scale, oracle):
    got_B = group_advantages(oracles.inputs["outcome_reward"], oracles.inputs["index"], scale=scale)

    torch.testing.assert_close(got_B[oracles.sample_of_T], oracles.packed_output(oracle))


def test_the_standard_deviation_is_the_unbiased_one():
    rewards_B = torch.tensor([1.0, 0.0, 0.0, 0.0])

    got_B = group_advantages(rewards_B, torch.zeros(4, dtype=torch.int64), scale=True)

    # mean 1/4, unbiased variance (9/16 + 3/16) / 3 = 1/4
    torch.testing.assert_close(got_B, torch.tensor([1.5, -0.5, -0.5, -0.5]), atol=1e-5, rtol=0)


@pytest.mark.parametrize("scale", [True, False])
def test_a_group_of_one_keeps_its_reward(scale):
    got_B = group_advantages(torch.tensor([0.7, -2.0]), torch.tensor([3, 9]), scale=scale)

    torch.testing.assert_close(got_B, torch.tensor([0.7, -2.0]))


@pytest.mark.parametrize("scale", [True, False])
def test_equal_rewards_that_no_float_can_average_give_exact_zeros(scale):
    rewards_B = torch.full((7,), 0.1)

    got_B = group_advantages(rewards_B, torch.zeros(7, dtype=torch.int64), scale=scale)

    assert got_B.tolist() == [0.0] * 7


def test_groups_may_be_interleaved_and_numbered_at_will():
    rewards_B = torch.tensor([1.0, 5.0, 0.0, 7.0])

    got_B = group_advantages(rewards_B, torch.tensor([40, 7, 40, 7]), scale=False)

    assert got_B.tolist() == [0.5, -1.0, -0.5, 1.0]


def test_advantages_of_a_group_add_up_to_zero_and_have_unit_spread():
    rewards_B = torch.randn(64, generator=torch.Generator().manual_seed(0))

    got_B = group_advantages(rewards_B, torch.arange(64) // 16, scale=True).view(4, 16)

    torch.testing.assert_close(got_B.sum(1), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(got_B.std(1), torch.ones(4), atol=1e-5, rtol=0)


def test_groups_whose_rewards_differ_have_a_signal():
    rewards_B = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.5, 0.0])
    group_of_B = torch.tensor([0, 0, 1, 1, 2, 2, 3, 4])

    assert groups_with_signal(rewards_B, group_of_B) == 2  # group 1, and the single 0.5


def test_no_samples_give_no_advantages():
    empty = torch.zeros(0)

    assert group_advantages(empty, empty.long(), scale=True).shape == (0,)
    assert groups_with_signal(empty, empty.long()) == 0


def test_huge_rewards_do_not_overflow():
    got_B = group_advantages(torch.tensor([1e30, -1e30]), torch.tensor([0, 0]), scale=True)

    expected = 1 / math.sqrt(2)
    torch.testing.assert_close(got_B, torch.tensor([expected, -expected]))
