"""GSPO (arXiv:2507.18071): one ratio per sequence, clipped for the full sequence."""

from rljob_api.spec.algorithms.policy_params import (
    ClipHigh,
    ClipLow,
    ClippedParams,
    LossAggregation,
)


class GSPOParams(ClippedParams):
    """GRPO's advantages; the ratio is the geometric mean over a sequence, and is clipped for the full
    sequence."""

    clip_low: ClipLow = 3e-4
    clip_high: ClipHigh = 4e-4
    loss_aggregation: LossAggregation = "sequence-mean"
