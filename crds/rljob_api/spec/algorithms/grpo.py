"""GRPO (DeepSeekMath, arXiv:2402.03300): group-relative advantages without a critic."""

from rljob_api.spec.algorithms.policy_params import ClippedParams


class GRPOParams(ClippedParams):
    """Group-relative advantages with a clipped surrogate."""

    scale_advantages: bool = True
    """Divide advantages by the group's standard deviation (unbiased); false is Dr.GRPO's choice."""
