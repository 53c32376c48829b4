"""SAPO (arXiv:2511.20347): a soft gate in place of the clip."""

from typing import Literal

from pydantic import Field

from rljob_api.spec.algorithms.policy_params import LossAggregation, PolicyParams
from rljob_api.spec.section import Section


class SAPOParams(PolicyParams):
    """Parameters of SAPO."""

    temperature_positive: float = Field(default=1.0, gt=0, le=1000)
    """Steepness τ of the gate where the advantage is positive."""

    temperature_negative: float = Field(default=1.05, gt=0, le=1000)
    """Steepness τ of the gate elsewhere; a steeper one lets go of tokens that become unlikely sooner."""

    loss_aggregation: LossAggregation = "sequence-mean"


class SAPO(Section):
    """GRPO's advantages; a sigmoid of the ratio lowers a token's gradient smoothly."""

    name: Literal["sapo"]
    """Name of the algorithm."""

    params: SAPOParams = SAPOParams()
    """Parameters of the algorithm."""
