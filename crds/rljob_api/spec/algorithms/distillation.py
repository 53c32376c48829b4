"""On-policy distillation: responses of the policy, graded token by token by a larger model."""

from pydantic import Field

from rljob_api.spec.algorithms.policy_params import ClippedParams


class DistillationParams(ClippedParams):
    """Reverse KL from a teacher, of the policy's own responses; needs spec.teacher."""

    reward_coefficient: float = Field(default=0.0, ge=0, le=1000)
    """Weight of GRPO's advantages of the rewards beside the teacher's; 0 only measures rewards."""

    min_groups_with_signal: int = Field(default=0, ge=0)
    """Skip the optimizer's step when fewer groups of the batch have rewards that differ."""

    @property
    def states(self) -> tuple[str, ...]:
        """See PolicyParams."""
        *first, update = super().states
        return (*first, "teacher", update)

    @property
    def fields(self) -> tuple[str, ...]:
        """See PolicyParams."""
        return (*super().fields, "teacher_logprobs")

    @property
    def every_sample_teaches(self) -> bool:
        """The teacher has something to say of every token."""
        return True

    @property
    def least_samples(self) -> int:
        """A teacher needs no group."""
        return 2 if self.reward_coefficient > 0 else 1
