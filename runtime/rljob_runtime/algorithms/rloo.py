"""Implement RLOO (arXiv:2402.14740): a sample's baseline is the mean reward of its prompt's other
samples."""

# B samples

from rljob_api.spec.algorithms.rloo import RLOOParams
from rljob_runtime.algorithms.functional import group_advantages, group_sizes
from rljob_runtime.algorithms.grpo import loss
from rljob_runtime.algorithms.shaping import rewards_less_kl
from rljob_runtime.samples.sample import SampleBatch

__all__ = ["loss", "prepare"]


def prepare(samples: SampleBatch, params: RLOOParams) -> None:
    """Add `advantage`: n/(n−1)·(R − mean of the group), or the reward in a group of one."""
    rewards_B = rewards_less_kl(samples, params)
    centred_B = group_advantages(rewards_B, samples.group_of_B, scale=False)
    sizes_B = group_sizes(samples.group_of_B)
    samples.scalars["advantage"] = centred_B * sizes_B / (sizes_B - 1).clamp(min=1)
