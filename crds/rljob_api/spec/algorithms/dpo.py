"""DPO (arXiv:2305.18290) on pairs: pairs of the data, or a prompt's best rollout against its worst."""

from typing import Literal

from pydantic import Field

from rljob_api.spec.algorithms.policy_params import LossAggregation, PolicyParams

UNUSED = (
    "kl_coefficient",
    "kl_estimator",
    "kl_in",
    "kl_target",
    "kl_horizon",
    "ratio_against",
    "rollout_correction",
    "sample_filter",
    "batch_reweighting",
    "loss_aggregation",
    "length_divisor",
)
"""Fields of PolicyParams that a loss of pairs does not use."""


class DPOParams(PolicyParams):
    """Each prompt's best response is preferred to its worst; needs a reference model, no critic."""

    beta: float = Field(default=0.1, gt=0, le=100)
    """β: the penalty for moving away from the reference model; IPO's τ."""

    pair_loss: Literal["sigmoid", "ipo"] = "sigmoid"
    """`sigmoid`: −log σ(β·h) of the margin h over the reference model; `ipo`: (h − 1/2β)²
    (arXiv:2310.12036)."""

    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of pairs that are assumed to have swapped labels (conservative DPO); for sigmoid."""

    length_normalized: bool = False
    """Take means instead of sums of a response's log-probs, so that length is not preferred."""

    loss_aggregation: LossAggregation = "sequence-mean"

    @property
    def states(self) -> tuple[str, ...]:
        """Return the worker states: a reference model always, and no critic."""
        return ("generate", "reward", "reference", "update")

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the columns that the update reads: the reference's log-probs."""
        return ("reference_logprobs",)
