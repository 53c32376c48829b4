"""PPO with a critic: advantages and losses against verl and closed forms."""

import pytest
import torch

from rljob_api.spec.algorithms.ppo import PPOParams
from rljob_runtime.algorithms import ppo
from rljob_runtime.algorithms.algorithm import Totals
from rljob_runtime.algorithms.functional import clipped_surrogate, token_mean
from rljob_runtime.algorithms.values import generalized_advantages, value_loss
from rljob_runtime.algorithms.whitening import whiten
from rljob_runtime.samples.sample import SampleBatch

DUAL_CLIPPED = 3.0


@pytest.mark.parametrize(("gamma", "gae_lambda"), [(1.0, 1.0), (1.0, 0.95), (0.99, 0.9)])
def test_advantages_and_returns_are_those_of_verl(oracles, gamma, gae_lambda):
    batch = oracles.batch(torch.zeros(8))
    lengths = [len(response) for response in batch.responses]

    estimates = generalized_advantages(
        oracles.packed("token_rewards"),
        oracles.packed("values"),
        lengths,
        gamma=gamma,
        gae_lambda=gae_lambda,
    )
    batch.fields["advantages"] = list(torch.split(estimates.advantages_T, lengths))
    whiten([batch], lambda sums: None)

    expected = oracles.verl[f"gae_g{gamma}_l{gae_lambda}"]
    returns, white = (
        torch.tensor(expected[name])[oracles.mask] for name in ("returns", "whitened_adv")
    )
    torch.testing.assert_close(estimates.returns_T, returns, atol=1e-6, rtol=0)
    torch.testing.assert_close(batch.packed("advantages"), white, atol=1e-6, rtol=0)


def test_values_behind_a_samples_end_count_for_nothing():
    rewards, values = torch.tensor([0.0, 1.0]), torch.tensor([0.3, 0.6])

    alone = generalized_advantages(rewards, values, [2], gamma=1.0, gae_lambda=0.95)
    beside = generalized_advantages(
        torch.cat([rewards, torch.full((5,), 9.0)]),
        torch.cat([values, torch.full((5,), -7.0)]),
        [2, 5],
        gamma=1.0,
        gae_lambda=0.95,
    )

    last = 1.0 - 0.6
    expected = torch.tensor([0.6 - 0.3 + 0.95 * last, last])
    torch.testing.assert_close(alone.advantages_T, expected)
    torch.testing.assert_close(beside.advantages_T[:2], expected)


@pytest.mark.parametrize("clip", [0.2, 0.5])
def test_the_clipped_value_loss_is_that_of_verl(oracles, clip):
    batch = oracles.batch(torch.zeros(8))
    values, advantages = oracles.per_sample("values"), oracles.per_sample("advantages")
    batch.fields.update(
        values=values, returns=[v + a for v, a in zip(values, advantages, strict=True)]
    )

    output = value_loss(oracles.packed("vpreds"), batch, Totals.of([batch]), clip=clip)

    expected = oracles.verl[f"value_loss_clip{clip}"]
    assert output.loss.item() == pytest.approx(expected["loss"], abs=1e-6)
    clipped = output.token_sums["clip_fraction"].item() / oracles.num_tokens
    assert clipped == pytest.approx(expected["clipfrac"], abs=1e-6)


def test_the_value_losss_gradient_is_that_of_finite_differences():
    batch = one_sample(6)
    batch.fields.update(
        values=[torch.linspace(-1, 1, 6).double()], returns=[torch.linspace(1, -2, 6).double()]
    )
    values_T = torch.linspace(-0.7, 1.4, 6).double().requires_grad_()

    assert torch.autograd.gradcheck(
        lambda v: value_loss(v, batch, Totals.of([batch]), clip=0.33).loss, values_T
    )


def test_dual_clip_bounds_the_loss_of_negative_advantages_alone():
    logprobs_T = torch.tensor([0.0, 2.0, 2.0, -2.0]).double().requires_grad_()
    advantages_T = torch.tensor([-1.0, -1.0, 1.0, -1.0]).double()
    surrogate = clipped_surrogate(
        logprobs_T, torch.zeros(4).double(), advantages_T, clip_low=0.2, clip_high=0.2
    )

    bounded = ppo.apply_dual_clip(surrogate, advantages_T, DUAL_CLIPPED)
    token_mean(bounded.losses_T, num_tokens=4).backward()

    expected = [1.0, DUAL_CLIPPED, -1.2, 0.8]
    torch.testing.assert_close(bounded.losses_T.detach(), torch.tensor(expected).double())
    assert logprobs_T.grad.tolist() == [0.25, 0.0, 0.0, 0.0]
    assert bounded.clipped_T.tolist() == [False, True, True, True]


def test_the_policys_loss_is_that_of_verl(oracles):
    batch = oracles.batch(torch.zeros(8))
    batch.fields["advantages"] = oracles.per_sample("advantages")
    params = PPOParams(dual_clip=3.0)

    output = ppo.loss(oracles.packed("logp"), batch, params, Totals.of([batch]))

    expected = oracles.verl["ppo_clip.2_dual3_token-mean"]["loss"]
    assert output.loss.item() == pytest.approx(expected, abs=1e-6)


def test_kl_in_the_reward_lowers_each_tokens_reward_and_leaves_the_loss_alone(oracles):
    batch = oracles.batch(torch.zeros(8))
    batch.scalars["reward"] = oracles.inputs["outcome_reward"]
    batch.fields["values"] = oracles.per_sample("values")
    with_kl = PPOParams(kl_coefficient=0.1, gae_lambda=1.0, whiten_advantages=False)

    plain = ppo.estimate(batch, with_kl.model_copy(update={"kl_coefficient": 0.0}))
    priced = ppo.estimate(batch, with_kl)
    ppo.prepare(batch, with_kl)
    losses = [
        ppo.loss(oracles.packed("logp"), batch, params, Totals.of([batch])).loss.item()
        for params in (with_kl, with_kl.model_copy(update={"kl_coefficient": 5.0}))
    ]

    kl = oracles.packed("rollout_logp") - oracles.packed("ref_logp")
    ahead = torch.cat(
        [
            part.flip(0).cumsum(0).flip(0)
            for part in torch.split(kl, [len(r) for r in batch.responses])
        ]
    )
    torch.testing.assert_close(plain.returns_T - priced.returns_T, 0.1 * ahead, atol=1e-6, rtol=0)
    assert losses[0] == losses[1]


def test_kl_in_the_loss_leaves_the_reward_alone(oracles):
    batch = oracles.batch(torch.zeros(8))
    batch.scalars["reward"] = oracles.inputs["outcome_reward"]
    batch.fields["values"] = oracles.per_sample("values")
    params = PPOParams(kl_coefficient=0.1, kl_in="loss", kl_estimator="k2")
    without = params.model_copy(update={"kl_coefficient": 0.0})

    assert torch.equal(
        ppo.estimate(batch, params).returns_T, ppo.estimate(batch, without).returns_T
    )
    ppo.prepare(batch, params)
    totals = Totals.of([batch])
    losses = [
        ppo.loss(oracles.packed("logp"), batch, p, totals).loss.item() for p in (params, without)
    ]
    k2 = (oracles.packed("logp") - oracles.packed("ref_logp")).square().mean() / 2
    assert losses[0] - losses[1] == pytest.approx(0.1 * k2.item(), abs=1e-6)


def test_the_critic_learns_returns_that_were_not_whitened(oracles):
    batch = oracles.batch(torch.zeros(8))
    batch.scalars["reward"] = oracles.inputs["outcome_reward"]
    batch.fields["values"] = oracles.per_sample("values")
    params = PPOParams(gae_lambda=1.0)

    ppo.prepare_critic(batch, params)

    expected = torch.tensor(oracles.verl["gae_g1.0_l1.0"]["returns"])[oracles.mask]
    torch.testing.assert_close(batch.packed("returns"), expected, atol=1e-6, rtol=0)


def test_samples_without_tokens_have_no_advantage_and_no_return():
    batch = SampleBatch(
        prompts=[torch.tensor([1])],
        group_of_B=torch.tensor([0, 0]),
        responses=[torch.zeros(0).long(), torch.tensor([5])],
        fields={"values": [torch.zeros(0), torch.tensor([0.25])]},
        scalars={"reward": torch.tensor([3.0, 1.0])},
    )

    estimates = ppo.estimate(batch, PPOParams())

    assert estimates.advantages_T.tolist() == [0.75]
    assert estimates.returns_T.tolist() == [1.0]


def one_sample(tokens: int) -> SampleBatch:
    return SampleBatch(
        prompts=[torch.tensor([1])],
        group_of_B=torch.tensor([0]),
        responses=[torch.zeros(tokens, dtype=torch.int64)],
    )
