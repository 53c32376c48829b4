"""REINFORCE++ (arXiv:2501.03262), which needs no groups, and its variant with a group's baseline."""

from typing import Literal

from pydantic import Field

from rljob_api.spec.algorithms.policy_params import ClippedParams


class ReinforcePlusPlusParams(ClippedParams):
    """Discounted returns of a token, whitened over the global batch; needs no group."""

    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    """Estimator of the KL term (Schulman's k1, k2, k3); k1 is the paper's, in the reward."""

    kl_in: Literal["loss", "reward"] = "reward"
    """Where the KL term is: added to the loss, or subtracted from the rewards before the advantages are
    computed."""

    discount: float = Field(default=1.0, gt=0, le=1)
    """Discount γ of a token's later rewards."""

    @property
    def whole_batch(self) -> bool:
        """Return True: advantages are whitened over all tokens of the step."""
        return True

    @property
    def least_samples(self) -> int:
        """Return 1: the baseline is the mean of the batch."""
        return 1
