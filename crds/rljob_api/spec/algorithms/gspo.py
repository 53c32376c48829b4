"""GSPO (arXiv:2507.18071): one ratio a sequence, clipped as a whole."""

from rljob_api.spec.algorithms.policy_params import (
    ClipHigh,
    ClipLow,
    ClippedParams,
    LossAggregation,
)


class GSPOParams(ClippedParams):
    """GRPO's advantages; the ratio is the geometric mean over a sequence, so that it is clipped whole."""

    clip_low: ClipLow = 3e-4
    clip_high: ClipHigh = 4e-4
    loss_aggregation: LossAggregation = "sequence-mean"
