"""Draw tokens as a pure function of (seed, position, logits).

Called by the rollout engines. Every sequence has its own stream of uniforms, counted by position,
so that a token does not depend on what else is in the batch or on how often it is refilled.
"""

# B sequences, V vocabulary

import torch
from torch import Tensor

from rljob_runtime.engines.base import Sampling


def uniforms(seeds_B: Tensor, positions_B: Tensor) -> Tensor:
    """Uniforms in [0, 1), float64 [B]: output `position` of SplitMix64 started at `seed`.

    seeds_B, positions_B: int64; 64-bit arithmetic wraps. Source: Steele, Lea, Flood, "Fast
    splittable pseudorandom number generators", OOPSLA 2014.
    """
    bits_B = _mixed(seeds_B + (positions_B + 1) * _signed(0x9E3779B97F4A7C15))
    return _shifted(bits_B, 11).double() * 2.0**-53


def draw(logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Tokens, int64 [B], by the inverse of the cumulative distribution, and their log-probs [B].

    logits_BV: float32. Log-probs are natural, under softmax(logits / temperature) before top-k and
    top-p cut it. Top-k cuts first; top-p keeps the fewest tokens that hold its share of the rest.
    """
    if sampling.temperature != 1.0:
        logits_BV = logits_BV / sampling.temperature
    norm_B = logits_BV.logsumexp(-1)
    if sampling.greedy:
        tokens_B = logits_BV.argmax(-1)
    else:
        weights_BV = (logits_BV - norm_B[:, None]).exp_()
        if sampling.top_k or sampling.top_p < 1:
            weights_BV = _cut(weights_BV, sampling)
        # In float64 a threshold below the total never reaches a token of weight 0.
        totals_BV = weights_BV.cumsum(-1, dtype=torch.float64)
        thresholds_B1 = (uniforms_B * totals_BV[:, -1])[:, None]
        tokens_B = torch.searchsorted(totals_BV, thresholds_B1, right=True)[:, 0]
    logprobs_B = logits_BV.gather(1, tokens_B[:, None])[:, 0] - norm_B
    return tokens_B, logprobs_B


def _cut(weights_BV: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities with 0 for the tokens that top-k and top-p drop; ties go to the lower id."""
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
    """Logical right shift; torch's is arithmetic."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64)
