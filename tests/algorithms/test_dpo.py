"""DPO: pairs out of groups, losses against the closed form, and the gradient by finite differences."""

import json
from pathlib import Path

import pytest
import torch

from rljob_api.spec.algorithms.dpo import DPOParams
from rljob_runtime.algorithms import dpo
from rljob_runtime.algorithms.algorithm import Totals
from rljob_runtime.samples.sample import SampleBatch

ORACLES = Path(__file__).parents[1] / "fixtures" / "rl-oracles.json"

CLOSED = json.loads(ORACLES.read_text())["dpo_closed_form"]


@pytest.mark.parametrize(
    ("case", "params"),
    [
        ("sigmoid_b.1", DPOParams()),
        ("cdpo_b.1_ls.1", DPOParams(label_smoothing=0.1)),
        ("ipo_b.1", DPOParams(pair_loss="ipo")),
    ],
)
def test_losses_are_the_closed_forms(case, params):
    chosen, rejected, of_chosen, of_rejected = torch.tensor(CLOSED["pc_pr_rc_rr"]).double().T

    losses = dpo.pair_losses((chosen - rejected) - (of_chosen - of_rejected), params)

    assert losses.tolist() == pytest.approx(CLOSED[case], abs=1e-6)


def samples(rewards: list[float], lengths: list[int]) -> SampleBatch:
    """Two groups, one after the other."""
    half = len(rewards) // 2
    return SampleBatch(
        prompts=[torch.tensor([1]), torch.tensor([2])],
        group_of_B=torch.tensor([0] * half + [1] * (len(rewards) - half)),
        responses=[torch.zeros(length, dtype=torch.int64) for length in lengths],
        fields={
            "reference_logprobs": [
                torch.linspace(-1, 0, n).double() - i for i, n in enumerate(lengths)
            ]
        },
        scalars={"reward": torch.tensor(rewards)},
    )


def test_the_best_and_the_worst_of_a_group_are_its_pair_and_equals_make_none():
    batch = samples([0.2, 1.0, 0.0, 0.5, 0.5, 0.5], [1, 2, 3, 1, 1, 1])

    dpo.prepare(batch, DPOParams())

    assert batch.scalars["advantage"].tolist() == [0, 1, -1, 0, 0, 0]


def test_the_loss_is_the_mean_over_prompts_and_does_not_depend_on_the_split():
    batch = samples([0.0, 1.0, 0.5, 0.7, 0.9, 0.1], [2, 3, 1, 2, 2, 4])
    params = DPOParams()
    dpo.prepare(batch, params)
    logprobs = [row.sin() for row in batch.fields["reference_logprobs"]]
    totals = Totals.of([batch])

    whole = dpo.loss(torch.cat(logprobs), batch, params, totals).loss
    parts = sum(
        dpo.loss(torch.cat([logprobs[i] for i in part]), batch.select(part), params, totals).loss
        for part in ([0, 1], [2], [4, 5], [3])
    )

    gained = [
        float((mine - theirs).sum())
        for mine, theirs in zip(logprobs, batch.fields["reference_logprobs"], strict=True)
    ]
    margins = torch.tensor([gained[1] - gained[0], gained[4] - gained[5]]).double()
    expected = dpo.pair_losses(margins, params).mean()
    assert whole.item() == pytest.approx(expected.item(), abs=1e-6)
    assert float(parts) == pytest.approx(whole.item(), abs=1e-9)


@pytest.mark.parametrize(
    "params",
    [
        DPOParams(),
        DPOParams(label_smoothing=0.2, length_normalized=True),
        DPOParams(pair_loss="ipo", beta=0.5),
    ],
)
def test_the_gradient_is_that_of_finite_differences(params):
    batch = samples([0.0, 1.0, 0.9, 0.1], [2, 3, 2, 4])
    dpo.prepare(batch, params)
    logprobs_T = torch.linspace(-3, 0, batch.num_tokens).double().requires_grad_()

    assert torch.autograd.gradcheck(
        lambda x: dpo.loss(x, batch, params, Totals.of([batch])).loss, logprobs_T
    )
