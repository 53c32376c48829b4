"""The loss of each algorithm against verl and TRL, its gradient by finite differences, and any split."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rljob_api.spec.algorithms import PARAMS
from rljob_api.spec.algorithms.policy_params import PolicyParams
from rljob_runtime.algorithms import ALGORITHMS, Totals
from rljob_runtime.samples.sample import SampleBatch

LONGEST = 6
"""The oracles' padded length."""

ANY_SAMPLES = [name for name in ALGORITHMS if name != "dpo"]
"""DPO's samples are pairs: `test_dpo` has its gradient and its parts."""
PLAIN = {name: {} for name in ANY_SAMPLES}
CASES = [
    *PLAIN.items(),
    ("grpo", {"kl_coefficient": 0.04, "loss_aggregation": "sequence-mean"}),
    ("gspo", {"clip_low": 0.2, "clip_high": 0.2}),
    ("cispo", {"weight_low": 0.8, "weight_high": 1.2}),
    ("dapo", {"rollout_correction": {"weight": "sequence", "mask": "geometric"}}),
    ("rloo", {"ratio_against": "rollout", "rollout_correction": {"mask": "token"}}),
]


def params_of(name: str, **given_params: object) -> PolicyParams:
    return PARAMS[name].model_validate(given_params).resolved(max_response_length=LONGEST)


def loss_of(name: str, batch: SampleBatch, logprobs_T: Tensor, **given_params: object):
    params = params_of(name, **given_params)
    return ALGORITHMS[name].loss(logprobs_T, batch, params, Totals.of([batch]))


@pytest.mark.parametrize(
    ("name", "params", "case"),
    [
        ("dr-grpo", {}, "dr_grpo"),
        ("dapo", {}, "dapo_eh28"),
        ("gspo", {"clip_low": 0.2, "clip_high": 0.2}, "gspo"),
        ("cispo", {}, "cispo_max5"),
        ("sapo", {}, "sapo"),
    ],
)
def test_losses_with_an_advantage_a_sample_are_those_of_trl(oracles, name, params, case):
    batch = oracles.batch(oracles.inputs["advantages"][:, 0])

    output = loss_of(name, batch, oracles.packed("logp"), **params)

    assert output.loss.item() == pytest.approx(oracles.trl[case], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "params", "case"),
    [
        ("grpo", {}, "ppo_clip.2_dual3_token-mean"),
        ("rloo", {}, "ppo_clip.2_dual3_token-mean"),
        ("reinforce-plus-plus", {}, "ppo_clip.2_dual3_token-mean"),
        ("reinforce-plus-plus-baseline", {}, "ppo_clip.2_dual3_token-mean"),
        ("dr-grpo", {}, "ppo_clip.2_dual3_seq-mean-token-sum-norm"),
        ("dapo", {}, "dapo_clip.2_.28_dual10_token-mean"),
        ("gspo", {}, "gspo"),
        ("gspo", {"clip_low": 0.2, "clip_high": 0.2}, "gspo_wide"),
        ("cispo", {"weight_low": 0.8, "weight_high": 1.28}, "cispo"),
        ("sapo", {}, "sapo"),
        ("rloo", {"rollout_correction": {"weight": "token"}}, "decoupled_ppo_tokenTIS_cap2"),
    ],
)
def test_losses_with_an_advantage_a_token_are_those_of_verl(oracles, name, params, case):
    batch = oracles.batch(torch.zeros(oracles.num_sequences))
    batch.fields["advantages"] = oracles.per_sample("advantages")

    output = loss_of(name, batch, oracles.packed("logp"), **params)

    assert output.loss.item() == pytest.approx(oracles.verl[case]["loss"], abs=1e-6)


def in_double(batch: SampleBatch) -> SampleBatch:
    batch.fields.update({n: [row.double() for row in rows] for n, rows in batch.fields.items()})
    batch.scalars.update({n: values.double() for n, values in batch.scalars.items()})
    return batch


DERIVATIVES = [case for case in CASES if case[0] not in ("gspo", "cispo")]


@pytest.mark.parametrize(("name", "params"), DERIVATIVES)
def test_gradients_are_those_of_finite_differences(oracles, name, params):
    """GSPO's and CISPO's are not the derivative of their value: they have closed forms below."""
    batch = in_double(oracles.batch(oracles.inputs["advantages"][:, 0]))
    logprobs_T = oracles.packed("logp").double().requires_grad_()

    assert torch.autograd.gradcheck(
        lambda x_T: loss_of(name, batch, x_T, **params).loss, (logprobs_T,), eps=1e-7, atol=1e-7
    )


def test_the_gradient_of_cispo_is_the_policy_gradient_by_clipped_weight(oracles):
    batch = oracles.batch(oracles.inputs["advantages"][:, 0])
    logprobs_T = oracles.packed("logp").requires_grad_()

    output = loss_of("cispo", batch, logprobs_T, weight_low=0.8, weight_high=1.2)
    (gradient_T,) = torch.autograd.grad(output.loss, logprobs_T)

    ratio_T = (logprobs_T.detach() - oracles.packed("old_logp")).exp()
    expected_T = -ratio_T.clamp(0.8, 1.2) * batch.advantages_T() / oracles.num_tokens
    torch.testing.assert_close(gradient_T, expected_T)


def test_the_gradient_of_gspo_is_that_of_the_sequence_ratio(oracles):
    batch = in_double(oracles.batch(oracles.inputs["advantages"][:, 0]))
    logprobs_T = oracles.packed("logp").double().requires_grad_()

    output = loss_of("gspo", batch, logprobs_T, clip_low=0.2, clip_high=0.2)
    (gradient_T,) = torch.autograd.grad(output.loss, logprobs_T)

    log_ratio_T = logprobs_T - oracles.packed("old_logp").double()
    losses = []
    for sample in range(oracles.num_sequences):
        s = log_ratio_T[oracles.sample_of_T == sample].mean().exp()
        advantage = batch.scalars["advantage"][sample]
        losses.append(-torch.minimum(s * advantage, s.clamp(0.8, 1.2) * advantage))
    (expected_T,) = torch.autograd.grad(torch.stack(losses).mean(), logprobs_T)
    torch.testing.assert_close(gradient_T, expected_T)


@pytest.mark.parametrize(("name", "params"), CASES)
@given(cut=st.lists(st.integers(0, 3), min_size=8, max_size=8))
@settings(max_examples=10, deadline=None)
def test_loss_and_gradient_add_up_over_any_parts_of_the_batch(oracles, name, params, cut):
    batch = oracles.batch(oracles.inputs["advantages"][:, 0])
    totals, chosen = Totals.of([batch]), params_of(name, **params)
    logprobs_T = oracles.packed("logp").requires_grad_()
    whole = loss_of(name, batch, logprobs_T, **params)
    (whole_gradient_T,) = torch.autograd.grad(whole.loss, logprobs_T)

    total = torch.zeros(())
    for part in ([i for i in range(8) if cut[i] == number] for number in range(4)):
        tokens = [logprobs_T[oracles.sample_of_T == i] for i in part] or [torch.zeros(0)]
        total = (
            total
            + ALGORITHMS[name].loss(torch.cat(tokens), batch.select(part), chosen, totals).loss
        )
    (gradient_T,) = torch.autograd.grad(total, logprobs_T)

    torch.testing.assert_close(total, whole.loss, atol=1e-6, rtol=0)
    torch.testing.assert_close(gradient_T, whole_gradient_T, atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", ANY_SAMPLES)
def test_every_loss_first_moves_along_the_policy_gradient(oracles, name):
    """At a ratio of 1 nothing is clipped: the gradient is −A over what the mean is taken over."""
    batch = oracles.batch(oracles.inputs["advantages"][:, 0])
    del batch.fields["old_logprobs"]
    batch.fields["teacher_logprobs"] = oracles.per_sample("logp")  # has nothing to add
    logprobs_T = oracles.packed("logp").requires_grad_()

    output = loss_of(name, batch, logprobs_T, loss_aggregation="token-mean")
    (gradient_T,) = torch.autograd.grad(output.loss, logprobs_T)

    torch.testing.assert_close(gradient_T, -batch.advantages_T() / oracles.num_tokens)


def test_every_algorithm_of_the_contract_has_a_loss_and_the_other_way_round():
    assert set(PARAMS) == set(ALGORITHMS)
