"""Dr.GRPO (arXiv:2503.20783): GRPO without its two biases, of length and of difficulty."""

from typing import Literal

from rljob_api.spec.algorithms.policy_params import ClippedParams, LossAggregation
from rljob_api.spec.section import Section


class DrGRPOParams(ClippedParams):
    """Parameters of Dr.GRPO."""

    loss_aggregation: LossAggregation = "sequence-sum"


class DrGRPO(Section):
    """Rewards less their group's mean; token sums divided by a constant, so that length has no price."""

    name: Literal["dr-grpo"]
    """Name of the algorithm."""

    params: DrGRPOParams = DrGRPOParams()
    """Parameters of the algorithm."""
