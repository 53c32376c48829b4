"""Embedding and log-probs of tokens when the ranks of a group share the vocabulary.

Called by the first and last stage of a parallel model. No rank ever holds a row of all logits: what the ranks
tell each other of a token are four numbers, and nothing on the way back.
"""

# U tokens of all ranks, S of one rank, L positions, T sampled tokens (several may share a position)
# H hidden, V ids of this rank, C positions of one chunk, t sampled tokens of one chunk

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_api.layout import share
from rljob_runtime.backends.collectives import max_over_ranks, rank_of, size_of, sum_over_ranks
from rljob_runtime.parallel.sequence import scatter_sum_rows
from rljob_runtime.parallel.volume import sum_bytes

LOGITS_AT_ONCE = 1 << 23
"""float32 values of a chunk: 32 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyShare:
    """The ids of a vocabulary whose rows this rank holds; `most` is how many the fullest rank holds."""

    ids: range
    most: int
    group: ProcessGroup | None

    @classmethod
    def of(cls, vocabulary: int, group: ProcessGroup | None) -> "VocabularyShare":
        """This rank's share of so many ids."""
        rank, ranks = rank_of(group), size_of(group)
        most = len(share(vocabulary, 0, ranks))
        return cls(ids=share(vocabulary, rank, ranks), most=most, group=group)

    def places(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Row of each id among this rank's, 0 for another rank's, and whether it is this rank's."""
        own = (ids >= self.ids.start) & (ids < self.ids.stop)
        return (ids - self.ids.start).masked_fill(~own, 0), own


def embed_tokens(tokens_U: Tensor, weight_VH: Tensor, held: VocabularyShare) -> Tensor:
    """Embeddings of this rank's tokens, [U] → [S, H]; as many bytes as a row-cut matrix.

    tokens_U: the same on all ranks, a multiple of them. weight_VH: the rows that are held.
    """
    place_U, own_U = held.places(tokens_U)
    embedded_UH = F.embedding(place_U, weight_VH).masked_fill(~own_U[:, None], 0.0)
    return scatter_sum_rows(embedded_UH, held.group)


def token_logprobs(
    hidden_LH: Tensor,
    weight_VH: Tensor,
    target_T: Tensor,
    row_of_T: Tensor,
    held: VocabularyShare,
    *,
    temperature: float,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden weightᵀ / temperature) of each target over the whole vocabulary, and the entropy
    there in nats, without gradient; float32 [T] both, the same on all ranks.

    hidden_LH, target_T, row_of_T: the same on all ranks. row_of_T: index into L of what predicts each
    target. weight_VH: the rows that are held. The gradient of hidden_LH is this rank's part of a
    sum over the ranks, which the backward of `gather_rows` makes. Memory beside the gradients: one
    chunk of logits, twice forward, and 2 L numbers kept for the backward pass.
    """
    rows = max(
        1, logits_at_once // held.most
    )  # equally many on all ranks, which meet in each chunk
    order_T = torch.argsort(row_of_T, stable=True)
    logprobs_T, entropy_L = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_LH, weight_VH, target_T[order_T], row_of_T[order_T], held, temperature, rows
    )
    return logprobs_T[torch.argsort(order_T)], entropy_L[row_of_T]


def token_logprobs_bytes(positions: int, targets: int, ranks: int) -> int:
    """Bytes that a rank sends, all of them forward: of a position its largest logit, its sum of
    exponentials and its mean logit, of a target its logit. positions: L, targets: T."""
    return sum_bytes(4 * positions, ranks) + sum_bytes(4 * (2 * positions + targets), ranks)


class _TokenLogprobs(torch.autograd.Function):
    """row_of_T is ascending, so that a chunk of positions has a range of targets."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_LH: Tensor,
        weight_VH: Tensor,
        target_T: Tensor,
        row_of_T: Tensor,
        held: VocabularyShare,
        temperature: float,
        rows: int,
    ) -> tuple[Tensor, Tensor]:
        place_T, own_T = held.places(target_T)
        chunks = _chunks(row_of_T, len(hidden_LH), rows)
        largest, log_sums, entropies, logprobs = [], [], [], []
        for positions, targets in chunks:
            logits_CV = _logits(hidden_LH[positions], weight_VH, temperature)
            largest_C = logits_CV.amax(-1)
            max_over_ranks(largest_C, held.group)
            logits_CV.sub_(largest_C[:, None])  # what is left does not cancel
            row_t = row_of_T[targets] - positions.start
            logit_t = logits_CV[row_t, place_T[targets]].masked_fill(~own_T[targets], 0.0)
            log_sum_C, entropy_C, logit_t = _summed(logits_CV, logit_t, held.group)
            largest.append(largest_C)
            log_sums.append(log_sum_C)
            entropies.append(entropy_C)
            logprobs.append(logit_t - log_sum_C[row_t])
        ctx.held, ctx.temperature, ctx.chunks = held, temperature, chunks
        norms = [torch.cat(largest), torch.cat(log_sums)]
        ctx.save_for_backward(hidden_LH, weight_VH, place_T, own_T, row_of_T, *norms)
        entropy_L = torch.cat(entropies)
        ctx.mark_non_differentiable(entropy_L)
        return torch.cat(logprobs), entropy_L

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden_LH, weight_VH, place_T, own_T, row_of_T, largest_L, log_sum_L = ctx.saved_tensors
        gradient_T = gradients[0].float()
        hidden_gradient_LH = torch.empty_like(hidden_LH)
        weight_gradient_VH = torch.zeros_like(weight_VH)
        for positions, targets in ctx.chunks:
            hidden_CH, row_t = hidden_LH[positions], row_of_T[targets] - positions.start
            gradient_t = gradient_T[targets]
            # d logprob / d logit = [it is the target] - probability
            total_C = gradient_t.new_zeros(len(hidden_CH)).index_add_(0, row_t, gradient_t)
            gradient_CV = _logits(hidden_CH, weight_VH, ctx.temperature)
            gradient_CV.sub_(largest_L[positions, None]).sub_(log_sum_L[positions, None]).exp_()
            gradient_CV.mul_(-total_C[:, None])
            own_t = gradient_t.masked_fill(~own_T[targets], 0.0)
            gradient_CV.index_put_((row_t, place_T[targets]), own_t, accumulate=True)
            gradient_CV = gradient_CV.div_(ctx.temperature).to(hidden_LH.dtype)
            hidden_gradient_LH[positions] = gradient_CV @ weight_VH
            weight_gradient_VH.addmm_(gradient_CV.T, hidden_CH)
        return hidden_gradient_LH, weight_gradient_VH, *[None] * 5


def _chunks(row_of_T: Tensor, num_rows: int, rows: int) -> list[tuple[slice, slice]]:
    """Ranges of at most `rows` positions, and of the targets that they predict; one at least."""
    bounds = [*range(0, max(num_rows, 1), rows), num_rows]
    cuts = torch.searchsorted(row_of_T, torch.tensor(bounds, device=row_of_T.device)).tolist()
    return [
        (slice(first, last), slice(low, high))
        for first, last, low, high in zip(bounds, bounds[1:], cuts, cuts[1:], strict=False)
    ]


def _logits(hidden_CH: Tensor, weight_VH: Tensor, temperature: float) -> Tensor:
    return F.linear(hidden_CH, weight_VH).float() / temperature


def _summed(
    logits_CV: Tensor, logit_t: Tensor, group: ProcessGroup | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Log of the sum of exponentials [C], entropy [C] and the targets' logits [t], of all ranks.

    logits_CV, logit_t: less each row's largest.
    """
    exponential_CV = logits_CV.exp()
    weighted_C = torch.linalg.vecdot(exponential_CV, logits_CV)
    sums = torch.cat([exponential_CV.sum(-1), weighted_C, logit_t])
    sum_over_ranks(sums, group)
    sum_C, weighted_C, logit_t = torch.split(sums, [*[len(weighted_C)] * 2, len(logit_t)])
    log_sum_C = sum_C.log()
    return log_sum_C, log_sum_C - weighted_C / sum_C, logit_t
