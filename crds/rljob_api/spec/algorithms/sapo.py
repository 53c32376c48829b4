"""SAPO (arXiv:2511.20347): a soft gate instead of the clip."""

from pydantic import Field

from rljob_api.spec.algorithms.policy_params import LossAggregation, PolicyParams


class SAPOParams(PolicyParams):
    """GRPO's advantages; a sigmoid of the ratio lowers a token's gradient smoothly."""

    temperature_positive: float = Field(default=1.0, gt=0, le=1000)
    """Steepness τ of the gate if the advantage is positive."""

    temperature_negative: float = Field(default=1.05, gt=0, le=1000)
    """Steepness τ of the gate otherwise; a steeper gate drops tokens that become unlikely sooner."""

    loss_aggregation: LossAggregation = "sequence-mean"
