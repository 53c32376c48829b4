"""Weights and masks between rollout and update: against verl, and by hand."""

import pytest
import torch

from rljob_api.spec.algorithms.policy_params import RolloutCorrection
from rljob_runtime.algorithms.corrections import correction

SAMPLE_OF_T = torch.tensor([0, 0, 1, 1, 1])
RATIO_T = torch.tensor([0.5, 3.0, 1.5, 2.0, 1.0])


def factors(ratio_T=RATIO_T, *, older=False, **chosen):
    return correction(
        ratio_T.log(),
        torch.zeros(len(ratio_T)),
        SAMPLE_OF_T,
        RolloutCorrection.model_validate(chosen),
        older=older,
    )


def test_weights_of_tokens_are_those_of_verl(oracles):
    got_T = correction(
        oracles.packed("old_logp"),
        oracles.packed("rollout_logp"),
        oracles.sample_of_T,
        RolloutCorrection(weight="token"),
        older=False,
    )

    expected = torch.tensor(oracles.verl["decoupled_ppo_tokenTIS_cap2"]["is_w"])[oracles.mask]
    torch.testing.assert_close(got_T, expected, atol=1e-6, rtol=1e-6)


def test_only_older_samples_are_weighted_unless_the_job_says_so():
    assert factors() is None
    assert factors(older=True).tolist() == pytest.approx([0.5, 2.0, 1.5, 2.0, 1.0])
    assert factors(older=True, weight="none") is None


def test_a_sequence_has_one_weight_the_product_of_its_tokens_ratios():
    got_T = factors(weight="sequence", cap=2.5)

    assert got_T.tolist() == pytest.approx([1.5, 1.5, 2.5, 2.5, 2.5])


@pytest.mark.parametrize(
    ("mask", "bounds", "kept"),
    [
        ("token", (0.6, 2.5), [0, 0, 1, 1, 1]),
        ("sequence", (0.5, 2.0), [1, 1, 0, 0, 0]),
        ("geometric", (0.5, 1.3), [1, 1, 0, 0, 0]),  # √1.5 = 1.22, ∛3 = 1.44
    ],
)
def test_what_is_out_of_bounds_is_masked(mask, bounds, kept):
    low, high = bounds

    got_T = factors(mask=mask, mask_low=low, mask_high=high)

    assert got_T.tolist() == kept


def test_a_mask_keeps_the_weights_of_what_it_keeps():
    got_T = factors(weight="token", mask="token", mask_low=0.6, mask_high=10)

    assert got_T.tolist() == pytest.approx([0.0, 2.0, 1.5, 2.0, 1.0])  # 3.0 is capped


def test_a_token_that_the_rollout_gave_no_chance_is_masked():
    got_T = factors(torch.tensor([1.0, torch.inf, 1.0, 1.0, 1.0]), mask="sequence")

    assert got_T.tolist() == [0, 0, 1, 1, 1]
