"""REINFORCE++-baseline (arXiv:2501.03262): a baseline from the group, whitening over the batch."""

from typing import Literal

from rljob_api.spec.algorithms.policy_params import ClippedParams


class BaselineParams(ClippedParams):
    """Rewards minus their group's mean, whitened over the global batch rather than the group."""

    kl_estimator: Literal["k1", "k2", "k3"] = "k2"
    """Estimator of the KL term (Schulman's k1, k2, k3); k2 is the paper's, in the loss."""

    @property
    def whole_batch(self) -> bool:
        """Return True: advantages are whitened over all tokens of the step."""
        return True
