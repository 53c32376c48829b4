"""PPO (arXiv:1707.06347) with a critic: generalized advantages (arXiv:1506.02438), KL in reward or loss."""

from typing import Literal

from pydantic import Field

from rljob_api.spec.algorithms.policy_params import ClippedParams


class PPOParams(ClippedParams):
    """Clipped surrogate with advantages from a critic."""

    discount: float = Field(default=1.0, gt=0, le=1)
    """Discount γ of a token's later rewards."""

    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """λ of generalized advantage estimation: 1 uses only rewards, 0 only the critic's next value."""

    whiten_advantages: bool = True
    """Bring advantages to mean 0 and variance 1 over all response tokens of the step; the update then starts
    once the full batch is available."""

    dual_clip: float | None = Field(default=3.0, gt=1, le=1000)
    """Tokens with a negative advantage lose at most this many times it (arXiv:1912.09729); null: no limit."""

    value_clip: float | None = Field(default=0.5, gt=0, le=1000)
    """A value that moves further than this from the one before the step trains the critic only as if it had
    moved this far; null for no limit."""

    kl_in: Literal["loss", "reward"] = "reward"
    """Where the KL term is: added to the loss, or subtracted from the rewards before the advantages are
    computed."""

    kl_estimator: Literal["k1", "k2", "k3"] = "k1"
    """Estimator of the KL term (Schulman's k1, k2, k3): k1 has the right gradient in the reward, k2 in the
    loss."""

    min_groups_with_signal: int = Field(default=0, ge=0)
    """Skip the policy's optimizer step when fewer groups of the batch have rewards that differ."""

    @property
    def states(self) -> tuple[str, ...]:
        """Return the worker states, with the critic's values and its training."""
        reference = ("reference",) if self.kl_coefficient > 0 else ()
        return ("generate", "reward", *reference, "values", "critic", "update")

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the columns that the update reads, including the critic's values."""
        return (*super().fields, "values")

    @property
    def whole_batch(self) -> bool:
        """Return whether advantages are whitened over all tokens of the step."""
        return self.whiten_advantages

    @property
    def least_samples(self) -> int:
        """Return 1: a critic needs no group."""
        return 1
