"""Advantages with mean 0 and variance 1 over all response tokens of the global batch.

Called once a step, where the algorithm's `whole_batch` says so.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rljob_runtime.samples.sample import SampleBatch

EPSILON = 1e-8


def whiten(groups: Sequence[SampleBatch], add_up: Callable[[Tensor], None]) -> None:
    """Give each token of these samples the field `advantages`: (A − mean) / √(variance + 1e-8).

    Mean and unbiased variance count every token once, as in REINFORCE++ (arXiv:2501.03262). add_up: sums
    a tensor [2] over all ranks, in place; called twice, since deviations are from the global mean. Without
    two tokens, nothing changes but the mean.
    """
    own_T = [group.advantages_T().double() for group in groups]
    counts = torch.tensor(
        [sum(float(one_T.sum()) for one_T in own_T), sum(map(len, own_T))], dtype=torch.float64
    )
    add_up(counts)
    total, num_tokens = counts.tolist()
    mean = total / max(num_tokens, 1)
    squares = torch.tensor(
        [sum(float((one_T - mean).square().sum()) for one_T in own_T), 0.0], dtype=torch.float64
    )
    add_up(squares)
    variance = float(squares[0]) / (num_tokens - 1) if num_tokens > 1 else 1.0
    for group, one_T in zip(groups, own_T, strict=True):
        white_T = ((one_T - mean) * (variance + EPSILON) ** -0.5).float()
        group.fields["advantages"] = group.split_by_sample(white_T)
