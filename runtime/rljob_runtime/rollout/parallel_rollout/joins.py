"""Communication of a model's ranks in a forward pass of generation: the `Joins` of several ranks.

Created by `rank_share`. Tensor ranks have the same tokens and sum the outputs of row-parallel matrices. A
step of generation has few tokens, so that distributing the norms would save nothing.

Experts are computed where they are stored, on all tokens of the models that share them, and the outputs are
summed: an all-gather and an all-reduce of [tokens, H] a layer. Tensor ranks have the tokens already; models
that share experts gather theirs first. Sending each token to its experts alone would take fewer bytes. But it
needs an exchange of counts, sizes that the host must know, and a way back, for a few tokens a step.
"""

# U tokens of a model, P those of the largest model that shares experts, M of all of them
# H hidden, V ids of one rank, I inner features of one rank

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.collectives import max_over_ranks, rank_of
from rljob_runtime.devices.kernels.product import product
from rljob_runtime.devices.wire import start_gather, start_receive, start_send, start_sum
from rljob_runtime.parallel.vocabulary import VocabularyShare
from rljob_runtime.rollout.rollout_grid import RolloutPurpose
from rljob_runtime.rollout.rollout_groups import RolloutGroups


class RankJoins:
    """A `Joins` over process groups. device: of the tensors."""

    def __init__(self, vocabulary: VocabularyShare, groups: RolloutGroups, device: str) -> None:
        self._vocabulary, self._device = vocabulary, device
        self._tensor, self._pipeline = (
            groups[RolloutPurpose.TENSOR],
            groups[RolloutPurpose.PIPELINE],
        )
        self._expert, self._sharers = groups[RolloutPurpose.EXPERT], groups[RolloutPurpose.SHARERS]
        self._by_number = groups.grid.degrees.expert > 1
        self._stage = rank_of(self._pipeline)
        self._counts: list[int] = []

    def begin(self, tokens: int) -> bool:
        """See Joins. Gathers the token count of each model that shares experts, [1] → [models]."""
        count = torch.tensor([tokens], device=self._device)
        self._counts = start_gather(count, self._sharers).wait().tolist()
        return any(self._counts)

    def embed(self, tokens_U: Tensor, weight_VH: Tensor) -> Tensor:
        """See Joins. All-reduces [U, H] over tensor ranks."""
        row_U, is_local_U = self._vocabulary.places(tokens_U)
        partial_UH = F.embedding(row_U, weight_VH).masked_fill_(~is_local_U[:, None], 0.0)
        return start_sum(partial_UH, self._tensor).wait()

    def arrive(self, like_UH: Tensor) -> Tensor:
        """See Joins. Receives [U, H] from the previous stage."""
        return start_receive(like_UH, self._stage - 1, self._pipeline).wait()

    def hand_on(self, hidden_UH: Tensor) -> None:
        """See Joins. Sends [U, H] to the next stage."""
        start_send(hidden_UH, self._stage + 1, self._pipeline).wait()

    def rows(self, x_UI: Tensor, weight_HI: Tensor, bias_H: Tensor | None) -> Tensor:
        """See Joins. All-reduces [U, H] over tensor ranks."""
        output_UH = start_sum(product(x_UI, weight_HI), self._tensor).wait()
        return output_UH if bias_H is None else output_UH + bias_H

    def to_experts(self, x_UH: Tensor) -> Tensor:
        """See Joins. Gathers over models that share experts, [P, H] → [models · P, H], of which it returns
        [M, H]."""
        if self._sharers is None:
            return x_UH
        longest = max(self._counts)
        padded_PH = F.pad(x_UH, (0, 0, 0, longest - len(x_UH)))
        gathered = torch.split(start_gather(padded_PH, self._sharers).wait(), longest)
        return torch.cat([x[:count] for x, count in zip(gathered, self._counts, strict=True)])

    def from_experts(self, output_UH: Tensor) -> Tensor:
        """See Joins. All-reduces [M, H] over expert ranks, or [U, H] over tensor ranks where these have the
        features of all experts."""
        group = self._expert if self._by_number else self._tensor
        return self.local_tokens(start_sum(output_UH, group).wait())

    def local_tokens(self, rows: Tensor) -> Tensor:
        """See Joins. Selects the rows of this model, [M, ...] → [U, ...]."""
        if self._sharers is None:
            return rows
        return torch.split(rows, self._counts)[self._sharers.rank()]

    def widest(self, values: Tensor) -> Tensor:
        """See Joins. Replaces values by the maximum over tensor ranks, [...] → [...], in place."""
        max_over_ranks(values.view(-1), self._tensor)
        return values
