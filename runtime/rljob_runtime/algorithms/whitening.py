"""Scale advantages to mean 0 and variance 1 over all response tokens of the global batch.

Called once a step, for algorithms with `whole_batch`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rljob_runtime.samples.sample import SampleBatch

EPSILON = 1e-8


def whiten(groups: Sequence[SampleBatch], add_up: Callable[[Tensor], None]) -> None:
    """Set the field `advantages` of these samples' tokens to (A − mean) / √(variance + 1e-8).

    Mean and unbiased variance count every token once, as in REINFORCE++ (arXiv:2501.03262). add_up: sums
    a tensor [2] over all ranks, in place; called twice, since deviations are from the global mean. With
    fewer than two tokens only the mean changes.
    """
    group_advantages = [group.advantages_T().double() for group in groups]
    counts = torch.tensor(
        [
            sum(float(advantages_T.sum()) for advantages_T in group_advantages),
            sum(map(len, group_advantages)),
        ],
        dtype=torch.float64,
    )
    add_up(counts)
    total, num_tokens = counts.tolist()
    mean = total / max(num_tokens, 1)
    squares = torch.tensor(
        [
            sum(float((advantages_T - mean).square().sum()) for advantages_T in group_advantages),
            0.0,
        ],
        dtype=torch.float64,
    )
    add_up(squares)
    variance = float(squares[0]) / (num_tokens - 1) if num_tokens > 1 else 1.0
    for group, advantages_T in zip(groups, group_advantages, strict=True):
        white_T = ((advantages_T - mean) * (variance + EPSILON) ** -0.5).float()
        group.fields["advantages"] = group.split_by_sample(white_T)
