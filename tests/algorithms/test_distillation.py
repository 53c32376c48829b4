"""On-policy distillation: its gradient is that of the reverse KL, in closed form over a whole vocabulary."""

import pytest
import torch

from rljob_api.spec.algorithms.distillation import DistillationParams
from rljob_runtime.algorithms import Totals, distillation
from rljob_runtime.samples.sample import SampleBatch

VOCABULARY = 5


def one_token_samples(policy_V, teacher_V, *, rewards=None):
    """A sample for each token that can be drawn."""
    return SampleBatch(
        prompts=[torch.tensor([1])],
        group_of_B=torch.zeros(VOCABULARY, dtype=torch.int64),
        responses=[torch.tensor([token]) for token in range(VOCABULARY)],
        fields={
            "rollout_logprobs": list(policy_V.detach().split(1)),
            "teacher_logprobs": list(teacher_V.split(1)),
        },
        scalars={"reward": torch.zeros(VOCABULARY) if rewards is None else torch.tensor(rewards)},
    )


@pytest.fixture
def scores():
    random = torch.Generator().manual_seed(2)
    return torch.randn(2, VOCABULARY, generator=random, dtype=torch.float64)


def test_the_expected_gradient_is_that_of_the_reverse_kl(scores):
    own_V = scores[0].clone().requires_grad_()
    teacher_V = scores[1].log_softmax(0)
    logprobs_V = own_V.log_softmax(0)
    samples, params = one_token_samples(logprobs_V, teacher_V), DistillationParams()
    distillation.prepare(samples, params)

    expected = torch.zeros(VOCABULARY, dtype=torch.float64)
    for token, chance in enumerate(logprobs_V.detach().exp()):  # as often as it is drawn
        part = samples.select([token])
        loss = distillation.loss(logprobs_V[token : token + 1], part, params, Totals.of([part]))
        expected += chance * torch.autograd.grad(loss.loss, own_V, retain_graph=True)[0]

    divergence = (logprobs_V.exp() * (logprobs_V - teacher_V)).sum()
    (gradient,) = torch.autograd.grad(divergence, own_V)
    torch.testing.assert_close(expected, gradient, atol=1e-12, rtol=0)


def test_a_policy_that_is_its_teacher_learns_nothing(scores):
    logprobs_V = scores[0].log_softmax(0).requires_grad_()
    samples, params = one_token_samples(logprobs_V, logprobs_V.detach()), DistillationParams()
    distillation.prepare(samples, params)

    output = distillation.loss(logprobs_V, samples, params, Totals.of([samples]))

    (gradient,) = torch.autograd.grad(output.loss, logprobs_V)
    assert gradient.abs().max() == 0
    assert output.token_sums["teacher/kl"] == 0


def test_stale_tokens_are_graded_against_the_policy_before_the_step(scores):
    own_V, teacher_V = scores[0].log_softmax(0), scores[1].log_softmax(0)
    samples, params = one_token_samples(own_V, teacher_V), DistillationParams()
    samples.fields["old_logprobs"] = list((own_V - 0.125).split(1))
    distillation.prepare(samples, params)

    output = distillation.loss(own_V, samples, params, Totals.of([samples]))

    expected = (own_V - 0.125 - teacher_V).sum()
    torch.testing.assert_close(output.token_sums["teacher/kl"], expected)


def test_rewards_count_by_their_coefficient(scores):
    own_V, teacher_V = scores[0].log_softmax(0), scores[0].log_softmax(0)
    samples = one_token_samples(own_V, teacher_V, rewards=[1.0, 0.0, 0.0, 0.0, 0.0])

    distillation.prepare(samples, DistillationParams(reward_coefficient=0.5))

    mean, deviation = 0.2, 0.2**0.5  # unbiased
    expected = [0.5 * ((i == 0) - mean) / (deviation + 1e-6) for i in range(VOCABULARY)]
    assert samples.scalars["advantage"].tolist() == pytest.approx(expected, abs=1e-6)
