"""Control the KL coefficient of a run: it is constant, or it follows the measured KL.

Held by the update state. Every rank computes the same coefficient, since it follows metrics over the
global batch.
"""

from dataclasses import dataclass
from typing import Self, TypeVar

from rljob_api.spec.algorithms.policy_params import PolicyParams

Params = TypeVar("Params", bound=PolicyParams)
LARGEST_ERROR = 0.2
HIGHEST = 10.0
"""The spec's bound of klCoefficient."""


@dataclass(slots=True, kw_only=True)
class KlControl:
    """The controller of the KL coefficient. coefficient: β of the next step. target: nats per token;
    None: β is constant. horizon: in samples."""

    coefficient: float
    target: float | None
    horizon: int

    @classmethod
    def of(cls, params: PolicyParams) -> Self:
        """Return the controller at the start of a job with these parameters."""
        return cls(
            coefficient=params.kl_coefficient, target=params.kl_target, horizon=params.kl_horizon
        )

    def apply_to(self, params: Params) -> Params:
        """Return the job's parameters with the current coefficient."""
        if self.target is None:
            return params
        return params.model_copy(update={"kl_coefficient": self.coefficient})

    def follow(self, kl: float, *, num_samples: int) -> None:
        """Adapt the coefficient to a step's KL (Ziegler et al., arXiv:1909.08593, §2.2).

        The new value is β·(1 + e·samples/horizon), where e is KL/target − 1, limited to ±0.2. It is at
        most 10 and never 0, which it could not leave.
        """
        if self.target is None:
            return
        error = min(max(kl / self.target - 1, -LARGEST_ERROR), LARGEST_ERROR)
        factor = max(1 + error * num_samples / self.horizon, 0.5)
        self.coefficient = min(self.coefficient * factor, HIGHEST)
