"""Embedding of tokens, and what log-probs need, when the ranks of a group share the vocabulary.

Called by the first and last stage of a parallel model. No rank ever holds a row of all logits: the ranks
exchange four numbers a token forward, and nothing backward (`linear_logprobs`).
"""

# U tokens of all ranks, S of one rank, H hidden, V ids of this rank

from dataclasses import dataclass

from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_api.model.layout import share
from rljob_runtime.devices.collectives import max_over_ranks, rank_of, size_of, sum_over_ranks
from rljob_runtime.devices.kernels.linear import embedding
from rljob_runtime.parallel.sequence import scatter_sum_rows
from rljob_runtime.parallel.volume import sum_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class VocabularyShare:
    """Ids of a vocabulary whose rows this rank holds: the `SharedIds` of `linear_logprobs`."""

    ids: range
    group: ProcessGroup | None

    @classmethod
    def of(cls, vocabulary: int, group: ProcessGroup | None) -> "VocabularyShare":
        """Return this rank's share of a vocabulary of this size."""
        rank, ranks = rank_of(group), size_of(group)
        return cls(ids=share(vocabulary, rank, ranks), group=group)

    def below(self, text_ids: int | None) -> range:
        """Return this rank's ids below this one; None returns all of them."""
        return (
            self.ids
            if text_ids is None
            else range(self.ids.start, self.ids.stop)[: max(0, text_ids - self.ids.start)]
        )

    def places(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the local row of each id (0 for another rank's), and a mask of the ids that are local."""
        is_local = (ids >= self.ids.start) & (ids < self.ids.stop)
        return (ids - self.ids.start).masked_fill(~is_local, 0), is_local

    def take_largest(self, values: Tensor) -> None:
        """Replace values [n] by the largest of the ranks' values, in place."""
        max_over_ranks(values, self.group)

    def take_sum(self, values: Tensor) -> None:
        """Replace values [n] by the sum of the ranks' values, in place."""
        sum_over_ranks(values, self.group)


def embed_tokens(tokens_U: Tensor, weight_VH: Tensor, vocabulary: VocabularyShare) -> Tensor:
    """Return embeddings of this rank's tokens, [U] → [S, H]; sends as many bytes as a row-parallel matrix.

    tokens_U: the same on all ranks, a multiple of their number. weight_VH: this rank's rows of the
    vocabulary.
    """
    row_U, is_local_U = vocabulary.places(tokens_U)
    embedded_UH = embedding(row_U, weight_VH).masked_fill(~is_local_U[:, None], 0.0)
    return scatter_sum_rows(embedded_UH, vocabulary.group)


def token_logprobs_bytes(positions: int, targets: int, ranks: int) -> int:
    """Return the bytes that a rank sends, all of them forward. A position sends its largest logit, its sum of
    exponentials and its mean logit; a target sends its logit. positions: L, targets: T."""
    return sum_bytes(4 * positions, ranks) + sum_bytes(4 * (2 * positions + targets), ranks)
