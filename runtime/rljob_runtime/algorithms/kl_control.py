"""The KL coefficient of a run: as the job says, or following the KL that was measured.

Held by the update state; every rank has the same one, since it follows metrics over the global batch.
"""

from dataclasses import dataclass
from typing import Self, TypeVar

from rljob_api.spec.algorithms.policy_params import PolicyParams

Params = TypeVar("Params", bound=PolicyParams)
LARGEST_ERROR = 0.2
HIGHEST = 10.0
"""The contract's bound of klCoefficient."""


@dataclass(slots=True, kw_only=True)
class KlControl:
    """coefficient: β of the next step. target: nats a token; None: it stays. horizon: in samples."""

    coefficient: float
    target: float | None
    horizon: int

    @classmethod
    def of(cls, params: PolicyParams) -> Self:
        """That of a job that begins."""
        return cls(
            coefficient=params.kl_coefficient, target=params.kl_target, horizon=params.kl_horizon
        )

    def applied(self, params: Params) -> Params:
        """The job's parameters with the present coefficient."""
        if self.target is None:
            return params
        return params.model_copy(update={"kl_coefficient": self.coefficient})

    def follow(self, kl: float, *, num_samples: int) -> None:
        """Take a step's KL in (Ziegler et al., arXiv:1909.08593, §2.2): β·(1 + e·samples/horizon), where e
        is KL/target − 1, limited to ±0.2. Never 0, which it could not leave, and at most 10."""
        if self.target is None:
            return
        error = min(max(kl / self.target - 1, -LARGEST_ERROR), LARGEST_ERROR)
        factor = max(1 + error * num_samples / self.horizon, 0.5)
        self.coefficient = min(self.coefficient * factor, HIGHEST)
