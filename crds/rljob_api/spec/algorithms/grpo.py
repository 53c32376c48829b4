"""GRPO (DeepSeekMath, arXiv:2402.03300): group-relative advantages without a critic."""

from typing import Literal

from rljob_api.spec.algorithms.policy_params import ClippedParams
from rljob_api.spec.section import Section


class GRPOParams(ClippedParams):
    """Parameters of GRPO."""

    scale_advantages: bool = True
    """Divide advantages by the group's standard deviation (unbiased); false is Dr.GRPO's choice."""


class GRPO(Section):
    """Group-relative advantages, clipped surrogate."""

    name: Literal["grpo"] = "grpo"
    """Name of the algorithm."""

    params: GRPOParams = GRPOParams()
    """Parameters of the algorithm."""
