"""GSPO (arXiv:2507.18071): one ratio a sequence, clipped as a whole."""

from typing import Literal

from rljob_api.spec.algorithms.policy_params import (
    ClipHigh,
    ClipLow,
    ClippedParams,
    LossAggregation,
)
from rljob_api.spec.section import Section


class GSPOParams(ClippedParams):
    """Parameters of GSPO."""

    clip_low: ClipLow = 3e-4
    clip_high: ClipHigh = 4e-4
    loss_aggregation: LossAggregation = "sequence-mean"


class GSPO(Section):
    """GRPO's advantages; the ratio is the geometric mean over a sequence, so that it is clipped whole."""

    name: Literal["gspo"]
    """Name of the algorithm."""

    params: GSPOParams = GSPOParams()
    """Parameters of the algorithm."""
