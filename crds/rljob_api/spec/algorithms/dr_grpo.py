"""Dr.GRPO (arXiv:2503.20783): GRPO without its two biases, of length and of difficulty."""

from rljob_api.spec.algorithms.policy_params import ClippedParams, LossAggregation


class DrGRPOParams(ClippedParams):
    """Rewards minus their group's mean; token sums divided by a constant, so that length has no effect."""

    loss_aggregation: LossAggregation = "sequence-sum"
