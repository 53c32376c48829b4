"""REINFORCE++ (arXiv:2501.03262), which needs no groups, and its variant with a group's baseline."""

from typing import Literal

from pydantic import Field

from rljob_api.spec.algorithms.policy_params import ClippedParams
from rljob_api.spec.section import Section


class ReinforcePlusPlusParams(ClippedParams):
    """Parameters of REINFORCE++."""

    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    """Estimator of the KL term (Schulman's k1, k2, k3); k1 is the paper's, in the reward."""

    kl_in: Literal["loss", "reward"] = "reward"
    """Where the KL term is: added to the loss, or taken off the rewards before the advantages are made."""

    discount: float = Field(default=1.0, gt=0, le=1)
    """Discount γ of a token's later rewards."""

    @property
    def whole_batch(self) -> bool:
        """Advantages are whitened over all tokens of the step."""
        return True

    @property
    def least_samples(self) -> int:
        """The baseline is the batch's."""
        return 1


class ReinforcePlusPlus(Section):
    """Discounted returns of a token, whitened over the global batch; needs no group."""

    name: Literal["reinforce-plus-plus"]
    """Name of the algorithm."""

    params: ReinforcePlusPlusParams = ReinforcePlusPlusParams()
    """Parameters of the algorithm."""


class BaselineParams(ClippedParams):
    """Parameters of REINFORCE++-baseline."""

    kl_estimator: Literal["k1", "k2", "k3"] = "k2"
    """Estimator of the KL term (Schulman's k1, k2, k3); k2 is the paper's, in the loss."""

    @property
    def whole_batch(self) -> bool:
        """Advantages are whitened over all tokens of the step."""
        return True


class ReinforcePlusPlusBaseline(Section):
    """Rewards less their group's mean, whitened over the global batch rather than the group."""

    name: Literal["reinforce-plus-plus-baseline"]
    """Name of the algorithm."""

    params: BaselineParams = BaselineParams()
    """Parameters of the algorithm."""
