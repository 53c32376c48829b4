"""Implement DAPO (arXiv:2503.14476): GRPO with overlong shaping. Clip-higher and the kind of mean are
parameters."""

import torch

from rljob_api.spec.algorithms.dapo import DAPOParams
from rljob_runtime.algorithms.functional import group_advantages, in_group_with_signal
from rljob_runtime.algorithms.grpo import loss
from rljob_runtime.algorithms.shaping import overlong_penalty, rewards_less_kl
from rljob_runtime.samples.sample import SampleBatch

__all__ = ["loss", "prepare"]


def prepare(samples: SampleBatch, params: DAPOParams) -> None:
    """Add `advantage`, computed from the rewards less the length penalty; every group must be complete.

    With dynamic sampling, a group that fills a place has one reward (`selection.batch_rows`) and
    advantage 0.
    """
    rewards_B = rewards_less_kl(samples, params)
    if params.overlong is not None:
        rewards_B = rewards_B - overlong_penalty(torch.tensor(samples.lengths), params.overlong)
    advantages_B = group_advantages(rewards_B, samples.group_of_B, scale=True)
    if params.dynamic_sampling is not None:
        has_signal_B = in_group_with_signal(samples.scalars["reward"], samples.group_of_B)
        advantages_B = advantages_B.where(has_signal_B, 0.0)
    samples.scalars["advantage"] = advantages_B
