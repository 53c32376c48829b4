"""CISPO (MiniMax-M1, arXiv:2506.13585): clips the weight of a token's gradient, never drops it."""

from pydantic import Field

from rljob_api.spec.algorithms.policy_params import PolicyParams


class CISPOParams(PolicyParams):
    """GRPO's advantages; REINFORCE weighted by the clipped ratio, so that every token has a gradient."""

    weight_low: float = Field(default=0.0, ge=0, le=1)
    """Smallest weight of a token, absolute; 0 clips only from above, as in the paper."""

    weight_high: float = Field(default=5.0, ge=1, le=1000)
    """Largest weight of a token, absolute."""
