"""RLOO (arXiv:2402.14740): REINFORCE with the mean of the other samples as baseline."""

from rljob_api.spec.algorithms.policy_params import ClippedParams


class RLOOParams(ClippedParams):
    """Rewards minus the mean reward of the prompt's other samples, which keeps the gradient unbiased."""
