"""GRPO (DeepSeekMath, arXiv:2402.03300): group-relative advantages without a critic."""

from typing import Literal

from pydantic import Field

from rljob_api.base import Section


class GRPOParams(Section):
    """Parameters of GRPO."""

    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """Lower clip bound ε of the ratio: the ratio is clipped at 1 − clipLow."""

    clip_high: float = Field(default=0.2, gt=0, le=10)
    """Upper clip bound ε of the ratio: the ratio is clipped at 1 + clipHigh; DAPO uses 0.28."""

    kl_coefficient: float = Field(default=0.0, ge=0, le=10)
    """Weight β of the KL term against the reference model; 0 starts no reference model."""

    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """Estimator of the KL term (Schulman's k1, k2, k3); k3 is DeepSeekMath's."""

    scale_advantages: bool = True
    """Divide advantages by the group's standard deviation (unbiased); false is Dr.GRPO's choice."""

    loss_aggregation: Literal["token-mean", "sequence-mean"] = "token-mean"
    """Mean over all response tokens of the global batch, or over sequences of their token means."""

    min_groups_with_signal: int = Field(default=1, ge=0)
    """Skip the optimizer's step when fewer groups of the batch have rewards that differ."""


class GRPO(Section):
    """Choice of the algorithm and its parameters."""

    name: Literal["grpo"] = "grpo"
    """Name of the algorithm."""

    params: GRPOParams = GRPOParams()
    """Parameters of the algorithm."""


def states(params: GRPOParams) -> tuple[str, ...]:
    """The worker states that GRPO needs, in the order in which a sample meets them."""
    reference = ("reference",) if params.kl_coefficient > 0 else ()
    return ("generate", "reward", *reference, "update")


def response_columns(params: GRPOParams) -> tuple[str, ...]:
    """Columns with one item a response token, the response itself among them (the paper's n)."""
    reference = ("reference_logprobs",) if params.kl_coefficient > 0 else ()
    return ("response", "rollout_logprobs", *reference)


def scalar_columns(params: GRPOParams) -> tuple[str, ...]:
    """Columns with one item a sample (of the paper's M scalars, those that the algorithm needs)."""
    return ("reward",)
