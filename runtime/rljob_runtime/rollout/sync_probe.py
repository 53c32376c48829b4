"""Verify that a rollout engine holds the policy's weights, by the log-probs of fixed token ids.

Called by the weight sync for engines that pack their weights, whose bytes have no comparable checksum. A
stale or half-loaded tensor changes these log-probs by far more than rounding does.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from rljob_runtime.errors import WeightsError
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.samples.sample import SampleBatch

NUM_SEQUENCES = 4
NUM_TOKENS = 16
LIKELY_NATS = 6.0
"""Rounding changes logits in proportion to their size. A token's distance counts fully down to e^-6, and a
rarer one's by so much less as its log-prob is larger. After training, very unlikely ids are at -20 and
below."""
# Nats. A bfloat16 forward pass differs from a float32 one by up to 0.02, wrong weights by 1 or so.
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.25, torch.int8: 0.25}


@runtime_checkable
class Probing(Protocol):
    """A rollout engine that scores given tokens."""

    def probe(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return log-probs at temperature 1 of each sequence's tokens from the second on, natural log."""
        ...


def probe_gap(
    engine: Probing, policy: PolicyModel, *, vocab_size: int, max_length: int = NUM_TOKENS + 1
) -> float:
    """Return `gap_of` the log-probs of engine and policy over the fixed sequences.

    vocab_size: ids below it are used. max_length: that of the engine; a sequence stays below it.
    """
    sequences = probe_sequences(vocab_size, max_length)
    return gap_of(engine.probe(sequences), policy_logprobs(policy, sequences))


def probe_sequences(vocab_size: int, max_length: int) -> list[list[int]]:
    """Return the fixed token ids. Arguments as in `probe_gap`."""
    return _sequences(vocab_size, min(NUM_TOKENS, max_length - 1))


def policy_logprobs(policy: PolicyModel, sequences: Sequence[Sequence[int]]) -> Tensor:
    """Return log-probs of all tokens from each sequence's second on [T]. Ranks that share the policy call it
    together."""
    batch = SampleBatch(
        prompts=[torch.tensor(ids[:1]) for ids in sequences],
        group_of_B=torch.arange(len(sequences)),
        responses=[torch.tensor(ids[1:]) for ids in sequences],
    )
    with torch.no_grad():
        return policy.logprobs(batch, temperature=1.0).logprobs_T.float().cpu()


def gap_of(engine_logprobs: Sequence[Sequence[float]], expected_T: Tensor) -> float:
    """Return the largest distance, in nats of a token that is not rarer than LIKELY_NATS."""
    engine_T = torch.tensor([value for values in engine_logprobs for value in values])
    rarer_T = (expected_T.abs() / LIKELY_NATS).clamp(min=1.0)
    return float(((engine_T - expected_T).abs() / rarer_T).max())


def check_probe(gap: float, *, dtype: torch.dtype, version: int, where: str = "") -> None:
    """Raise WeightsError if the gap is more than the engine's dtype explains, int8 for one that holds its
    matrices in 8 bits. where: " of rank 3"."""
    limit = TOLERANCE[dtype]
    if not gap <= limit:  # also when it is not a number
        raise WeightsError(
            f"weights version {version} did not arrive in the rollout engine{where}: its log-probs are off "
            f"by {gap:.3g} nats where {dtype} explains {limit}; the run stops, resume from the last "
            "checkpoint"
        )


def _sequences(vocab_size: int, num_tokens: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    shape = (NUM_SEQUENCES, num_tokens)
    ids: list[list[int]] = torch.randint(vocab_size, shape, generator=generator).tolist()
    return ids
