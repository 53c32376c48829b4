"""OPO (arXiv:2505.23585): the reward of a sample less the length-weighted mean of its group."""

# B samples, G groups

import torch
from rljob_example_opo_params import OPOParams

from rljob_runtime.algorithms.grpo import loss
from rljob_runtime.samples.sample import SampleBatch

__all__ = ["loss", "prepare"]


def prepare(samples: SampleBatch, params: OPOParams) -> None:
    """Add `advantage`; every group is whole."""
    lengths_B = torch.tensor([float(len(response)) for response in samples.responses])
    weights_B = lengths_B.pow(params.length_power)
    rewards_B, group_of_B = samples.scalars["reward"], samples.group_of_B
    zeros_G = torch.zeros(len(samples.prompts))
    weights_G = zeros_G.index_add(0, group_of_B, weights_B).clamp(min=1)
    mean_G = zeros_G.index_add(0, group_of_B, weights_B * rewards_B) / weights_G
    samples.scalars["advantage"] = rewards_B - mean_G[group_of_B]
