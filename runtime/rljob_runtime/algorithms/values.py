"""Compute advantages from a critic's values, and the critic's loss. Pure functions on packed tokens.

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
class AdvantageEstimates:
    """The advantages and returns of response tokens. advantages_T, returns_T: float32."""

    advantages_T: Tensor
    returns_T: Tensor


def generalized_advantages(
    rewards_T: Tensor, values_T: Tensor, lengths: Sequence[int], *, gamma: float, gae_lambda: float
) -> AdvantageEstimates:
    """Compute GAE (arXiv:1506.02438, eq. 16): A_t = Σ_k (γλ)^k δ_{t+k}, δ_t = r_t + γ V_{t+1} − V_t;
    returns are A + V.

    values_T: of the state in which each token is drawn. lengths: of each sample; the state after its last
    token has the value 0. Computed in float64.
    """
    rewards_BL, values_BL = (_rows(x.double(), lengths) for x in (rewards_T, values_T))
    following_BL = torch.cat([values_BL[:, 1:], torch.zeros_like(values_BL[:, :1])], dim=1)
    deltas_BL = rewards_BL + gamma * following_BL - values_BL
    advantages_BL = torch.zeros_like(deltas_BL)
    later_B = torch.zeros(len(lengths), dtype=torch.float64)
    for index in reversed(range(deltas_BL.shape[1])):
        later_B = deltas_BL[:, index] + gamma * gae_lambda * later_B
        advantages_BL[:, index] = later_B
    is_token_BL = torch.arange(deltas_BL.shape[1]) < torch.tensor(lengths)[:, None]
    advantages_T = advantages_BL[is_token_BL]
    return AdvantageEstimates(
        advantages_T=advantages_T.float(), returns_T=(advantages_T + values_T.double()).float()
    )


def value_loss(
    values_T: Tensor, batch: SampleBatch, totals: Totals, *, clip: float | None
) -> LossOutput:
    """Return ½ max((V − R)², (clip(V, V_old ± clip) − R)²) as this micro-batch's share of the token mean.

    batch: has the fields `values`, V_old, and `returns`, R. clip: None omits the second term. Metrics:
    error (V − R)², mean of V, and R and R² for the explained variance.
    """
    old_T, returns_T = batch.packed("values"), batch.packed("returns")
    error_T = (values_T - returns_T).square()
    losses_T, clipped_T = error_T, torch.zeros_like(error_T)
    if clip is not None:
        change_T = values_T - old_T
        clipped_error_T = (old_T + change_T.clamp(-clip, clip) - returns_T).square()
        losses_T = torch.maximum(error_T, clipped_error_T)
        clipped_T = (clipped_error_T > error_T) & (
            change_T.abs() > clip
        )  # otherwise only rounding differs
    detached_T = values_T.detach()
    return LossOutput(
        loss=losses_T.sum() / 2 / max(totals.num_tokens, 1),
        mean_over="tokens",
        token_sums={
            "error": error_T.detach().sum(),
            "clip_fraction": clipped_T.sum(),
            "mean": detached_T.sum(),
            "returns/mean": returns_T.sum(),
            "returns/square": returns_T.square().sum(),
        },
        maxima={},
    )


def _rows(values_T: Tensor, lengths: Sequence[int]) -> Tensor:
    """Return the values with one row per sample, padded with zeros, [B, L]."""
    return nn.utils.rnn.pad_sequence(list(torch.split(values_T, list(lengths))), batch_first=True)
