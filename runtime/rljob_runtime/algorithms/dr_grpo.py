"""Implement Dr.GRPO (arXiv:2503.20783): rewards less their group's mean, and sums instead of means
over tokens."""

from rljob_api.spec.algorithms.dr_grpo import DrGRPOParams
from rljob_runtime.algorithms.functional import group_advantages
from rljob_runtime.algorithms.grpo import loss
from rljob_runtime.algorithms.shaping import rewards_less_kl
from rljob_runtime.samples.sample import SampleBatch

__all__ = ["loss", "prepare"]


def prepare(samples: SampleBatch, params: DrGRPOParams) -> None:
    """Add `advantage`, not divided by the group's deviation; every group must be complete."""
    samples.scalars["advantage"] = group_advantages(
        rewards_less_kl(samples, params), samples.group_of_B, scale=False
    )
