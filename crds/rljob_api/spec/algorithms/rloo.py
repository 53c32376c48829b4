"""RLOO (arXiv:2402.14740): REINFORCE with the mean of the other samples as baseline."""

from typing import Literal

from rljob_api.spec.algorithms.policy_params import ClippedParams
from rljob_api.spec.section import Section


class RLOOParams(ClippedParams):
    """Parameters of RLOO."""


class RLOO(Section):
    """Rewards less the mean reward of the prompt's other samples, which keeps the gradient unbiased."""

    name: Literal["rloo"]
    """Name of the algorithm."""

    params: RLOOParams = RLOOParams()
    """Parameters of the algorithm."""
