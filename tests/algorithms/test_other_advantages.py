"""Advantages beyond GRPO's: against verl, and by hand; whitening does not depend on how samples are split."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.spec.algorithms import PARAMS
from rljob_api.spec.algorithms.dapo import Overlong
from rljob_runtime.algorithms import ALGORITHMS
from rljob_runtime.algorithms.functional import kl_divergence
from rljob_runtime.algorithms.reinforce_plus_plus import returns
from rljob_runtime.algorithms.shaping import overlong_penalty
from rljob_runtime.algorithms.whitening import whiten


def prepared(oracles, name, **given_params):
    batch = oracles.batch(torch.zeros(oracles.num_sequences))
    del batch.scalars["advantage"]
    batch.scalars["reward"] = oracles.inputs["outcome_reward"]
    params = PARAMS[name].model_validate(given_params).resolved(max_response_length=6)
    ALGORITHMS[name].prepare(batch, params)
    if params.whole_batch:
        whiten([batch], lambda sums: None)
    return batch


@pytest.mark.parametrize(
    ("name", "oracle"),
    [
        ("grpo", "grpo_adv_std"),
        ("dapo", "grpo_adv_std"),
        ("gspo", "grpo_adv_std"),
        ("cispo", "grpo_adv_std"),
        ("sapo", "grpo_adv_std"),
        ("dr-grpo", "drgrpo_adv"),
        ("rloo", "rloo_adv"),
        ("reinforce-plus-plus", "rfpp_adv_gamma1"),
        ("reinforce-plus-plus-baseline", "rfpp_baseline_adv"),
    ],
)
def test_advantages_are_those_of_verl(oracles, name, oracle):
    got_T = prepared(oracles, name).advantages_T()

    torch.testing.assert_close(got_T, oracles.packed_output(oracle), atol=1e-6, rtol=1e-6)


def test_a_token_is_credited_with_what_follows_it_discounted():
    penalty_T = torch.tensor([0.1, 0.0, 0.4])

    got_T = returns(1.0, penalty_T, 0.5)

    # 0.6 at the end; 0 + 0.5 · 0.6; −0.1 + 0.5 · 0.3
    torch.testing.assert_close(got_T, torch.tensor([0.05, 0.3, 0.6]))
    torch.testing.assert_close(returns(1.0, penalty_T, 1.0), torch.tensor([0.5, 0.6, 0.6]))


def test_a_kl_in_the_reward_is_taken_off_before_the_groups_are_compared(oracles):
    got = prepared(oracles, "rloo", kl_coefficient=0.1, kl_in="reward", kl_estimator="k1").scalars[
        "advantage"
    ]

    kl_T = kl_divergence(oracles.packed("old_logp"), oracles.packed("ref_logp"), "k1")
    less_B = oracles.inputs["outcome_reward"].clone()
    for sample in range(oracles.num_sequences):
        less_B[sample] -= 0.1 * kl_T[oracles.sample_of_T == sample].sum()
    first = less_B[0] - less_B[1:4].mean()
    assert got[0].item() == pytest.approx(first.item(), abs=1e-6)


def test_a_long_response_costs_as_much_as_it_reaches_into_the_buffer():
    """The paper's numbers: 16384 tokens are free, 20480 cost 1."""
    lengths_B = torch.tensor([100, 16384, 17408, 20480, 30000])

    got_B = overlong_penalty(lengths_B, Overlong(buffer_tokens=4096, max_length=20480))

    assert got_B.tolist() == [0.0, 0.0, 0.25, 1.0, 1.0]


def test_overlong_shaping_lowers_advantages_and_not_rewards(oracles):
    overlong = {"buffer_tokens": 2, "penalty": 0.5}

    got = prepared(oracles, "dapo", overlong=overlong)

    lengths_B = oracles.mask.sum(1)
    shaped_B = oracles.inputs["outcome_reward"] - 0.5 * ((lengths_B - 4) / 2).clamp(0, 1)
    group_B = shaped_B[:4]
    expected_B = (group_B - group_B.mean()) / (group_B.std() + 1e-6)
    torch.testing.assert_close(got.scalars["advantage"][:4], expected_B)
    assert got.scalars["reward"].equal(oracles.inputs["outcome_reward"])


@given(cut=st.lists(st.integers(0, 2), min_size=8, max_size=8))
def test_whitening_is_the_same_on_any_number_of_ranks(oracles, cut):
    whole = prepared(oracles, "reinforce-plus-plus")
    ranks = [[i for i in range(8) if cut[i] == rank] for rank in range(3)]
    raw = oracles.batch(oracles.inputs["outcome_reward"])
    parts = [raw.select(members) for members in ranks]
    everything = [_own_sums(parts)]

    for part in parts:
        calls = iter(everything[0])
        whiten([part], lambda sums, calls=calls: sums.copy_(next(calls)))  # type: ignore[misc]

    for members, part in zip(ranks, parts, strict=True):
        for member, got_T in zip(members, part.fields["advantages"], strict=True):
            torch.testing.assert_close(got_T, whole.fields["advantages"][member])


def _own_sums(parts):
    """What the two sums over the ranks come to."""
    all_T = torch.cat([part.advantages_T() for part in parts]).double()
    count = len(all_T)
    first = torch.tensor([all_T.sum(), count], dtype=torch.float64)
    second = torch.tensor([(all_T - all_T.mean()).square().sum(), 0.0], dtype=torch.float64)
    return first, second


def test_whitened_tokens_have_mean_zero_and_variance_one(oracles):
    got_T = prepared(oracles, "reinforce-plus-plus").advantages_T().double()

    assert got_T.mean().item() == pytest.approx(0, abs=1e-6)
    assert got_T.var().item() == pytest.approx(1, abs=1e-6)


def test_no_samples_and_one_token_are_whitened_without_a_fault(oracles):
    one = oracles.batch(oracles.inputs["outcome_reward"]).select([3])

    whiten([], lambda sums: None)
    whiten([one], lambda sums: None)

    assert one.fields["advantages"][0].tolist() == [0.0]
