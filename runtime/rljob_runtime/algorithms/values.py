"""Advantages that a critic makes possible, and the loss that it learns by. Pure functions on packed tokens.

Called by algorithms with a critic and by the critic state. A tensor `_T` holds the response tokens of all
samples one after the other.
"""

# B samples, T response tokens of all samples together, L tokens of the longest sample

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.samples.sample import SampleBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """advantages_T, returns_T: float32."""

    advantages_T: Tensor
    returns_T: Tensor


def generalized_advantages(
    rewards_T: Tensor, values_T: Tensor, lengths: Sequence[int], *, gamma: float, gae_lambda: float
) -> Estimates:
    """GAE (arXiv:1506.02438, eq. 16): A_t = Σ_k (γλ)^k δ_{t+k}, δ_t = r_t + γ V_{t+1} − V_t; returns A + V.

    values_T: of the state that each token is drawn in. lengths: of each sample; the state behind its last
    token has the value 0. Computed in float64.
    """
    rewards_BL, values_BL = (_rows(x.double(), lengths) for x in (rewards_T, values_T))
    following_BL = torch.cat([values_BL[:, 1:], torch.zeros_like(values_BL[:, :1])], dim=1)
    deltas_BL = rewards_BL + gamma * following_BL - values_BL
    advantages_BL = torch.zeros_like(deltas_BL)
    later_B = torch.zeros(len(lengths), dtype=torch.float64)
    for place in reversed(range(deltas_BL.shape[1])):
        later_B = deltas_BL[:, place] + gamma * gae_lambda * later_B
        advantages_BL[:, place] = later_B
    there_BL = torch.arange(deltas_BL.shape[1]) < torch.tensor(lengths)[:, None]
    advantages_T = advantages_BL[there_BL]
    return Estimates(
        advantages_T=advantages_T.float(), returns_T=(advantages_T + values_T.double()).float()
    )


def value_loss(
    values_T: Tensor, batch: SampleBatch, totals: Totals, *, clip: float | None
) -> LossOutput:
    """½ max((V − R)², (clip(V, V_old ± clip) − R)²) as this part's share of the token mean.

    batch: with the fields `values`, V_old, and `returns`, R. clip: None leaves the second out.
    Metrics: error (V − R)², mean of V, and R and R² for the explained variance.
    """
    old_T, returns_T = batch.packed("values"), batch.packed("returns")
    error_T = (values_T - returns_T).square()
    losses_T, clipped_T = error_T, torch.zeros_like(error_T)
    if clip is not None:
        moved_T = values_T - old_T
        held_T = (old_T + moved_T.clamp(-clip, clip) - returns_T).square()
        losses_T = torch.maximum(error_T, held_T)
        clipped_T = (held_T > error_T) & (moved_T.abs() > clip)  # else it is rounding alone
    found_T = values_T.detach()
    return LossOutput(
        loss=losses_T.sum() / 2 / max(totals.num_tokens, 1),
        mean_over="tokens",
        token_sums={
            "error": error_T.detach().sum(),
            "clip_fraction": clipped_T.sum(),
            "mean": found_T.sum(),
            "returns/mean": returns_T.sum(),
            "returns/square": returns_T.square().sum(),
        },
        maxima={},
    )


def _rows(values_T: Tensor, lengths: Sequence[int]) -> Tensor:
    """A row a sample with zeros behind it, [B, L]."""
    return nn.utils.rnn.pad_sequence(list(torch.split(values_T, list(lengths))), batch_first=True)
