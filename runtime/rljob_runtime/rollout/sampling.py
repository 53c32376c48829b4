"""Sample tokens as a pure function of (seed, position, logits).

Called by the rollout engines. Every sequence has its own stream of uniforms, indexed by position. So a token
is independent of the other sequences of the batch and of how often it is refilled.
"""

# B sequences, V vocabulary, K blocks of N tokens

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.rollout.rollout_engine import Sampling

BLOCK = 64  # tokens of a large vocabulary that are summed together


def uniforms(seeds_B: Tensor, positions_B: Tensor) -> Tensor:
    """Return uniforms in [0, 1), float64 [B]: output `position` of SplitMix64 started at `seed`.

    seeds_B, positions_B: int64; 64-bit arithmetic wraps. Source: Steele, Lea, Flood, "Fast splittable
    pseudorandom number generators", OOPSLA 2014.
    """
    bits_B = _mixed(seeds_B + (positions_B + 1) * _signed(0x9E3779B97F4A7C15))
    return _shifted(bits_B, 11).double() * 2.0**-53


def draw(logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return tokens, int64 [B], by the inverse of the cumulative distribution, and their log-probs [B].

    logits_BV: float32. Log-probs are natural, under softmax(logits / temperature) before top-k and top-p
    truncate it. Top-k is applied first; top-p keeps the fewest tokens that hold its share of the remainder.
    """
    if sampling.temperature != 1.0:
        logits_BV = logits_BV / sampling.temperature
    peak_B1 = logits_BV.amax(-1, keepdim=True)
    weights_BV = (logits_BV - peak_B1).exp_()
    norm_B = peak_B1[:, 0] + weights_BV.sum(-1).log_()
    if sampling.greedy:
        tokens_B = logits_BV.argmax(-1)
    else:
        if sampling.top_k or sampling.top_p < 1:
            weights_BV = _truncated(weights_BV, sampling)
        tokens_B = _first_beyond(weights_BV, uniforms_B)
    logprobs_B = logits_BV.gather(1, tokens_B[:, None])[:, 0] - norm_B
    return tokens_B, logprobs_B


def _first_beyond(weights_BV: Tensor, uniforms_B: Tensor) -> Tensor:
    """Return the first token at which the cumulative weight exceeds this share of the total, [B].

    A token of weight 0 is never returned. Over a large vocabulary the sums of blocks locate the token's
    block: a running sum is computed sequentially, a sum in parallel.
    """
    if weights_BV.shape[1] < 2 * BLOCK**2:
        totals_BV = weights_BV.cumsum(-1, dtype=torch.float64)
        return _first_above(totals_BV, uniforms_B * totals_BV[:, -1])
    padding = -weights_BV.shape[1] % BLOCK
    blocks_BKN = F.pad(weights_BV, (0, padding)).view(len(weights_BV), -1, BLOCK)
    totals_BK = blocks_BKN.sum(-1, dtype=torch.float64).cumsum(-1)
    threshold_B = uniforms_B * totals_BK[:, -1]
    block_B = _first_above(totals_BK, threshold_B)
    row_B = torch.arange(len(block_B), device=block_B.device)
    before_B = F.pad(totals_BK, (1, 0))[row_B, block_B]
    inside_BN = blocks_BKN[row_B, block_B].cumsum(-1, dtype=torch.float64)
    return block_B * BLOCK + _first_above(inside_BN, threshold_B - before_B)


def _first_above(totals_BN: Tensor, threshold_B: Tensor) -> Tensor:
    """Return the index of the first total above the threshold, [B]; one exists however the threshold was
    rounded."""
    below_B = totals_BN[:, -1] * (1 - 2.0**-52)
    threshold_B1 = torch.minimum(threshold_B, below_B)[:, None]
    return torch.searchsorted(totals_BN, threshold_B1, right=True)[:, 0]


def _truncated(weights_BV: Tensor, sampling: Sampling) -> Tensor:
    """Return the weights with 0 for the tokens that top-k and top-p drop; ties are broken by the lower id."""
    sorted_BV, order_BV = weights_BV.sort(dim=-1, descending=True, stable=True)
    if sampling.top_k:
        sorted_BV[:, sampling.top_k :] = 0
    totals_BV = sorted_BV.cumsum(-1, dtype=torch.float64)
    before_BV = totals_BV - sorted_BV
    sorted_BV = sorted_BV.masked_fill(before_BV >= sampling.top_p * totals_BV[:, -1:], 0)
    return torch.zeros_like(weights_BV).scatter_(1, order_BV, sorted_BV)


def _mixed(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """Shift right logically; torch's shift is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64)
