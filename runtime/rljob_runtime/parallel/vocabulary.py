"""Embedding of tokens, and what log-probs need, when the ranks of a group share the vocabulary.

Called by the first and last stage of a parallel model. No rank ever holds a row of all logits: what the ranks
tell each other of a token are four numbers, and nothing on the way back (`linear_logprobs`).
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
    """The ids of a vocabulary whose rows this rank holds: the `SharedIds` of `linear_logprobs`."""

    ids: range
    group: ProcessGroup | None

    @classmethod
    def of(cls, vocabulary: int, group: ProcessGroup | None) -> "VocabularyShare":
        """This rank's share of so many ids."""
        rank, ranks = rank_of(group), size_of(group)
        return cls(ids=share(vocabulary, rank, ranks), group=group)

    def below(self, text_ids: int | None) -> range:
        """This rank's ids below this one; None: all."""
        return (
            self.ids
            if text_ids is None
            else range(self.ids.start, self.ids.stop)[: max(0, text_ids - self.ids.start)]
        )

    def places(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Row of each id among this rank's, 0 for another rank's, and whether it is this rank's."""
        own = (ids >= self.ids.start) & (ids < self.ids.stop)
        return (ids - self.ids.start).masked_fill(~own, 0), own

    def take_largest(self, values: Tensor) -> None:
        """The largest of the ranks' values [n], in place."""
        max_over_ranks(values, self.group)

    def take_sum(self, values: Tensor) -> None:
        """The sum of the ranks' values [n], in place."""
        sum_over_ranks(values, self.group)


def embed_tokens(tokens_U: Tensor, weight_VH: Tensor, held: VocabularyShare) -> Tensor:
    """Embeddings of this rank's tokens, [U] → [S, H]; as many bytes as a row-cut matrix.

    tokens_U: the same on all ranks, a multiple of them. weight_VH: the rows that are held.
    """
    place_U, own_U = held.places(tokens_U)
    embedded_UH = embedding(place_U, weight_VH).masked_fill(~own_U[:, None], 0.0)
    return scatter_sum_rows(embedded_UH, held.group)


def token_logprobs_bytes(positions: int, targets: int, ranks: int) -> int:
    """Bytes that a rank sends, all of them forward: of a position its largest logit, its sum of
    exponentials and its mean logit, of a target its logit. positions: L, targets: T."""
    return sum_bytes(4 * positions, ranks) + sum_bytes(4 * (2 * positions + targets), ranks)
