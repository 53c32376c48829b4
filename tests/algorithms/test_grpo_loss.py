"""The loss of GRPO against verl and TRL, and how it adds up over parts of the batch."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rljob_api.spec.algorithms.grpo import GRPOParams
from rljob_runtime.algorithms import ALGORITHMS, Totals
from rljob_runtime.algorithms.functional import (
    clipped_surrogate,
    kl_divergence,
    sequence_mean,
    token_mean,
)

GRPO = ALGORITHMS["grpo"]


@pytest.mark.parametrize(
    ("case", "clip_high"),
    [("ppo_clip.2_dual3_token-mean", 0.2), ("dapo_clip.2_.28_dual10_token-mean", 0.28)],
)
def test_token_mean_and_clip_fraction_are_those_of_verl(oracles, case, clip_high):
    surrogate = clipped_surrogate(
        oracles.packed("logp"),
        oracles.packed("old_logp"),
        oracles.packed("advantages"),
        clip_low=0.2,
        clip_high=clip_high,
    )

    loss = token_mean(surrogate.losses_T, num_tokens=oracles.num_tokens)
    assert oracles.verl[case]["actor/pg_clipfrac_lower"] == 0  # no dual clip in what is compared
    assert loss.item() == pytest.approx(oracles.verl[case]["loss"], abs=1e-6)
    clip_fraction = surrogate.clipped_T.float().mean().item()
    assert clip_fraction == pytest.approx(oracles.verl[case]["actor/pg_clipfrac"], abs=1e-6)


def test_sequence_mean_is_that_of_verl(oracles):
    surrogate = clipped_surrogate(
        oracles.packed("logp"),
        oracles.packed("old_logp"),
        oracles.packed("advantages"),
        clip_low=0.2,
        clip_high=0.2,
    )

    loss = sequence_mean(
        surrogate.losses_T, oracles.sample_of_T, num_sequences=oracles.num_sequences
    )

    expected = oracles.verl["ppo_clip.2_dual3_seq-mean-token-mean"]["loss"]
    assert loss.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_estimators_are_those_of_verl(oracles, estimator):
    got_T = kl_divergence(oracles.packed("logp"), oracles.packed("ref_logp"), estimator)

    expected_T = oracles.packed_output(f"kl_{estimator}")
    torch.testing.assert_close(got_T, expected_T, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(
    ("case", "params"),
    [
        ("grpo", {"loss_aggregation": "sequence-mean"}),
        ("grpo_beta04", {"loss_aggregation": "sequence-mean", "kl_coefficient": 0.04}),
        ("bnpo", {}),
        ("dapo_eh28", {"clip_high": 0.28}),
    ],
)
def test_the_whole_loss_is_that_of_trl(oracles, case, params):
    batch = oracles.batch(oracles.inputs["advantages"][:, 0])

    output = GRPO.loss(oracles.packed("logp"), batch, GRPOParams(**params), Totals.of([batch]))

    assert output.loss.item() == pytest.approx(oracles.trl[case], abs=1e-6)


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean"])
@given(cut=st.lists(st.integers(0, 3), min_size=8, max_size=8))
@settings(max_examples=30)
def test_loss_and_gradient_add_up_over_any_parts_of_the_batch(oracles, aggregation, cut):
    params = GRPOParams(kl_coefficient=0.04, loss_aggregation=aggregation)
    batch = oracles.batch(oracles.inputs["advantages"][:, 0])
    totals = Totals.of([batch])
    logprobs_T = oracles.packed("logp").requires_grad_()
    whole = GRPO.loss(logprobs_T, batch, params, totals)
    (whole_gradient_T,) = torch.autograd.grad(whole.loss, logprobs_T)

    parts = [[i for i in range(8) if cut[i] == part] for part in range(4)]
    outputs = [
        GRPO.loss(
            torch.cat([logprobs_T[oracles.sample_of_T == i] for i in part] or [torch.zeros(0)]),
            batch.select(part),
            params,
            totals,
        )
        for part in parts
    ]
    total = sum(output.loss for output in outputs)
    (gradient_T,) = torch.autograd.grad(total, logprobs_T)

    torch.testing.assert_close(total, whole.loss, atol=1e-6, rtol=0)
    torch.testing.assert_close(gradient_T, whole_gradient_T, atol=1e-7, rtol=1e-6)
    for name, value in whole.token_sums.items():
        summed = sum(output.token_sums[name] for output in outputs)
        assert float(summed) == pytest.approx(float(value), abs=1e-5)
    for name, value in whole.maxima.items():
        assert max(float(output.maxima[name]) for output in outputs) == float(value)


def test_without_old_log_probs_the_ratio_is_one_and_the_gradient_is_the_policy_gradient(oracles):
    batch = oracles.batch(oracles.inputs["advantages"][:, 0])
    del batch.fields["old_logprobs"]
    logprobs_T = oracles.packed("logp").requires_grad_()

    output = GRPO.loss(logprobs_T, batch, GRPOParams(), Totals.of([batch]))
    (gradient_T,) = torch.autograd.grad(output.loss, logprobs_T)

    advantages_T = batch.scalars["advantage"][oracles.sample_of_T]
    torch.testing.assert_close(gradient_T, -advantages_T / oracles.num_tokens)
    assert output.token_sums["clip_fraction"].item() == 0
    assert output.token_sums["ratio/mean"].item() == oracles.num_tokens


def test_the_mismatch_compares_the_rollout_with_the_policy_that_it_sampled_from(oracles):
    batch = oracles.batch(oracles.inputs["advantages"][:, 0])

    output = GRPO.loss(oracles.packed("logp"), batch, GRPOParams(), Totals.of([batch]))

    difference_T = (oracles.packed("old_logp") - oracles.packed("rollout_logp")).double()
    k3_T = difference_T.exp() - difference_T - 1
    assert output.token_sums["mismatch/kl"].item() == pytest.approx(k3_T.sum().item())
    assert output.maxima["mismatch/max"].item() == difference_T.abs().max().item()
    assert output.maxima["mismatch/ratio_max"].item() == difference_T.exp().max().item()


def test_a_ratio_that_would_overflow_stays_finite():
    logprobs_T = torch.tensor([0.0, -500.0], requires_grad=True)

    surrogate = clipped_surrogate(
        logprobs_T,
        torch.tensor([-500.0, 0.0]),
        torch.tensor([-1.0, 1.0]),
        clip_low=0.2,
        clip_high=0.2,
    )
    surrogate.losses_T.sum().backward()

    assert surrogate.losses_T.isfinite().all()
    assert logprobs_T.grad is not None and logprobs_T.grad.tolist() == [0.0, 0.0]


def test_an_infinite_mismatch_is_reported_and_leaves_the_mean_finite(oracles):
    batch = oracles.batch(oracles.inputs["advantages"][:, 0])
    batch.fields["rollout_logprobs"][0][0] = -2000.0

    output = GRPO.loss(oracles.packed("logp"), batch, GRPOParams(), Totals.of([batch]))

    assert output.maxima["mismatch/max"].item() > 1999
    assert output.token_sums["mismatch/kl"].isfinite()


@pytest.mark.parametrize("aggregation", ["token-mean", "sequence-mean"])
def test_an_empty_response_adds_nothing(oracles, aggregation):
    params = GRPOParams(loss_aggregation=aggregation)
    batch = oracles.batch(oracles.inputs["advantages"][:, 0])
    logprobs_T = oracles.packed("logp")
    before = GRPO.loss(logprobs_T, batch, params, Totals.of([batch]))

    for rows in [batch.responses, *batch.fields.values()]:
        rows.append(torch.zeros(0))
    batch.scalars["advantage"] = torch.cat([batch.scalars["advantage"], torch.tensor([9.0])])
    after = GRPO.loss(logprobs_T, batch, params, Totals.of([batch]))

    assert after.loss.item() == before.loss.item()


def test_kl_pulls_towards_the_reference():
    logprobs_T = torch.tensor([-1.0, -2.0], requires_grad=True)
    reference_T = torch.tensor([-2.0, -1.0])

    for estimator in ("k2", "k3"):
        value = kl_divergence(logprobs_T, reference_T, estimator).sum()
        (gradient_T,) = torch.autograd.grad(value, logprobs_T)
        assert gradient_T[0] > 0 > gradient_T[1]


def test_the_loss_of_older_samples_is_weighted_and_that_of_present_ones_is_not(oracles):
    batch = oracles.batch(torch.ones(oracles.num_sequences))
    logprobs_T = oracles.packed("old_logp")
    params, totals = GRPOParams(), Totals.of([batch])

    plain = GRPO.loss(logprobs_T, batch, params, totals)
    batch.fields["behaviour_logprobs"] = [row - 1 for row in batch.fields["old_logprobs"]]
    older = GRPO.loss(logprobs_T, batch, params, totals)
    batch.fields["behaviour_logprobs"] = batch.fields["old_logprobs"]
    present = GRPO.loss(logprobs_T, batch, params, totals)

    assert older.loss.item() == pytest.approx(2 * plain.loss.item())
    assert present.loss.item() == plain.loss.item()
    assert plain.loss.item() == pytest.approx(-1.0)
