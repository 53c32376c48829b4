"""OPO (arXiv:2505.23585): its parameters, and what it needs. Imports no torch."""

from pydantic import Field

from rljob_api.spec.algorithms.policy_params import ClippedParams


class OPOParams(ClippedParams):
    """States and columns are those of GRPO: `states`, `fields` and `scalars`, inherited."""

    length_power: float = Field(default=1.0, ge=0, le=4)
    """Weight of a reward in its group's baseline: the response's tokens to this power; 0 is the mean."""
