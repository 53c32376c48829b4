"""Implement REINFORCE++-baseline (arXiv:2501.03262): subtract the group's mean, scale by the step's
deviation."""

from rljob_api.spec.algorithms.reinforce_plus_plus_baseline import BaselineParams
from rljob_runtime.algorithms.functional import group_advantages
from rljob_runtime.algorithms.grpo import loss
from rljob_runtime.algorithms.shaping import rewards_less_kl
from rljob_runtime.samples.sample import SampleBatch

__all__ = ["loss", "prepare"]


def prepare(samples: SampleBatch, params: BaselineParams) -> None:
    """Add `advantage`, not yet whitened; every group must be complete."""
    rewards_B = rewards_less_kl(samples, params)
    samples.scalars["advantage"] = group_advantages(rewards_B, samples.group_of_B, scale=False)
