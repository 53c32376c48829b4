"""How far log-probs of fixed ids may be apart before the weights count as wrong."""

import pytest
import torch

from rljob_runtime.errors import WeightsError
from rljob_runtime.rollout.sync_probe import check_probe, gap_of


def test_rounding_of_a_token_that_nobody_would_draw_is_no_wrong_weight() -> None:
    """As bfloat16 rounds: by up to 2 % of a log-prob."""
    expected_T = torch.tensor([-0.7, -5.5, -13.0, -24.0])

    gap = gap_of([[-0.71, -5.6], [-13.26, -24.48]], expected_T)

    assert gap == pytest.approx(0.12, abs=1e-3)
    check_probe(gap, dtype=torch.bfloat16, version=7)


@pytest.mark.parametrize("found", [[-1.7, -20.0], [-0.7, -21.0], [-0.7, float("nan")]])
def test_wrong_weights_are_seen_by_tokens_of_any_log_prob(found: list[float]) -> None:
    gap = gap_of([found], torch.tensor([-0.7, -20.0]))

    with pytest.raises(WeightsError, match="weights version 7 did not arrive"):
        check_probe(gap, dtype=torch.bfloat16, version=7)
