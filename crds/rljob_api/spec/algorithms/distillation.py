"""On-policy distillation: responses of the policy, graded token by token by a larger model."""

from pydantic import Field

from rljob_api.spec.algorithms.policy_params import ClippedParams


class DistillationParams(ClippedParams):
    """Reverse KL from a teacher on the policy's own responses; needs spec.teacher."""

    reward_coefficient: float = Field(default=0.0, ge=0, le=1000)
    """Weight of GRPO's advantages of the rewards, added to the teacher's; 0 only measures rewards."""

    min_groups_with_signal: int = Field(default=0, ge=0)
    """Skip the optimizer's step when fewer groups of the batch have rewards that differ."""

    @property
    def states(self) -> tuple[str, ...]:
        """Return the worker states, with the teacher before the update."""
        *first, update = super().states
        return (*first, "teacher", update)

    @property
    def fields(self) -> tuple[str, ...]:
        """Return the columns that the update reads, including the teacher's log-probs."""
        return (*super().fields, "teacher_logprobs")

    @property
    def every_sample_teaches(self) -> bool:
        """Return True: the teacher grades every token."""
        return True

    @property
    def least_samples(self) -> int:
        """Return 1 without rewards: a teacher needs no group."""
        return 2 if self.reward_coefficient > 0 else 1
