"""Both ends of a decoder whose vocabulary and tokens are shared by ranks.

`policy` sets them on the decoder; the form for one device is `models.ends`. Every rank of a replica gets all
log-probs, and computes the same loss from them.
"""

# S tokens of one rank, U of one context rank, H hidden, V ids of one rank
# P all packed tokens, T response tokens, t those that this context rank predicts
# l its positions that predict them

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.kernels.linear_logprobs import linear_logprobs
from rljob_runtime.models.architecture import MoeArchitecture
from rljob_runtime.models.blocks.matrix import Matrix
from rljob_runtime.models.blocks.router_load import RouterLoad
from rljob_runtime.models.packing import Packing, Segments
from rljob_runtime.models.policy_model import TokenLogprobs
from rljob_runtime.parallel.decoder.tokens import TokenShare, token_share
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose
from rljob_runtime.parallel.sequence import gather_rows, sum_partials
from rljob_runtime.parallel.vocabulary import VocabularyShare, embed_tokens


class SharedEnds:
    """An `Ends` for several ranks. vocabulary: ids of all ranks."""

    def __init__(self, vocabulary: int, groups: ProcessGroups) -> None:
        self._coordinates, self._degrees = groups.grid.coordinates(groups.rank), groups.grid.degrees
        self._tensor, self._context = groups[Purpose.TENSOR], groups[Purpose.CONTEXT]
        self.vocabulary = VocabularyShare.of(vocabulary, self._tensor)

    def share(self, packing: Packing) -> Packing:
        """Return the batch as this rank sees it.

        Its tokens and positions are those of this context rank, with padding as token 0 at position 0. The
        vision tower's outputs and the routes are those of this rank's hidden states.
        """
        share = self.share_of(packing.segments)
        offsets_u = torch.tensor(
            share.packed_offsets, dtype=torch.int64, device=packing.tokens_U.device
        )
        padding = (0, share.inside - len(share.packed_offsets))
        axes = (0, 0) * (packing.positions_U.ndim - 1)
        pictured = packing.pictured
        if pictured is not None:
            row_of_U = torch.full_like(packing.tokens_U, -1)
            local_offsets = offsets_u[share.outside.start : share.outside.stop]
            row_of_U[local_offsets] = torch.arange(len(local_offsets), device=local_offsets.device)
            pictured = pictured.cut(row_of_U)
        routes = packing.routes_UMK
        return replace(
            packing,
            routes_UMK=None if routes is None else _local_routes(routes, share, offsets_u),
            tokens_U=F.pad(packing.tokens_U[offsets_u], padding),
            positions_U=F.pad(packing.positions_U[offsets_u], axes + padding),
            pictured=pictured,
        )

    def embed(self, packing: Packing, weight_VH: Tensor) -> Tensor:
        """Embed the tokens, [U] → [S, H]."""
        return embed_tokens(packing.tokens_U, weight_VH, self.vocabulary)

    def logprobs(
        self,
        hidden_SH: Tensor,
        weight_VH: Tensor,
        packing: Packing,
        *,
        temperature: float,
        with_entropy: bool,
        text_ids: int | None,
    ) -> TokenLogprobs:
        """Return log-probs on all ranks, [S, H] → [T]: each context rank computes those that its positions
        predict."""
        packed_offsets = self.share_of(packing.segments).packed_offsets
        device = hidden_SH.device
        position_P = torch.full((packing.num_tokens,), -1, device=device)
        position_P[torch.tensor(packed_offsets, dtype=torch.int64, device=device)] = torch.arange(
            len(packed_offsets), device=device
        )
        position_T = position_P[packing.predicting_L[packing.row_of_T]]
        is_local_T = position_T >= 0
        position_l, row_t = torch.unique(position_T[is_local_T], return_inverse=True)
        hidden_lH = gather_rows(hidden_SH, self._tensor).index_select(0, position_l)
        logprobs_t, entropy_t = linear_logprobs(
            hidden_lH,
            weight_VH,
            packing.target_T[is_local_T],
            row_t,
            temperature=temperature,
            with_entropy=True,
            ids=None if self._tensor is None else self.vocabulary,
            rows=len(self.vocabulary.below(text_ids)),
        )
        assert entropy_t is not None, "it was asked for"
        local_2T = torch.zeros(2, len(is_local_T), device=hidden_SH.device)
        local_2T = local_2T.masked_scatter(
            is_local_T, torch.stack([logprobs_t, entropy_t.detach()])
        )
        logprobs_T, entropy_T = sum_partials(local_2T, self._context)
        return TokenLogprobs(
            logprobs_T=logprobs_T.clone(),  # not a view: FSDP2 hooks what a model returns
            entropy_T=entropy_T.detach() if with_entropy else None,
        )

    def values(self, hidden_SH: Tensor, score: Matrix, packing: Packing) -> Tensor:
        """Return values on all ranks, [S, H] → [T]: each computes those of its local tokens."""
        share = self.share_of(packing.segments)
        first, count = share.outside.start, share.real_outside
        local_offsets = torch.tensor(
            share.packed_offsets[first : first + count], dtype=torch.int64, device=hidden_SH.device
        )
        values_S: Tensor = score(hidden_SH)[:count, 0].float()
        values_P = values_S.new_zeros(packing.num_tokens).index_put((local_offsets,), values_S)
        values_P = sum_partials(sum_partials(values_P, self._tensor), self._context)
        return values_P[packing.predicting_L[packing.row_of_T]]

    def router_load(self, experts: MoeArchitecture, packing: Packing) -> RouterLoad:
        """Return a load that counts this rank's tokens without padding, and adds up those of the replica."""
        return RouterLoad(
            experts,
            num_tokens=self.share_of(packing.segments).real_outside,
            over_ranks=lambda values: sum_partials(
                sum_partials(values, self._tensor), self._context
            ),
        )

    def share_of(self, segments: Segments) -> TokenShare:
        """Return this rank's tokens of a batch."""
        return token_share(segments, self._coordinates, self._degrees)


def _local_routes(routes_UMK: Tensor, share: TokenShare, offsets_u: Tensor) -> Tensor:
    """Return the routes of local tokens, [P, M, K] → [S, M, K]. Padding goes to the first experts, K
    different ones."""
    local_offsets = offsets_u[share.outside.start : share.outside.stop]
    padding = torch.arange(routes_UMK.shape[2], device=local_offsets.device).to(routes_UMK.dtype)
    padded = padding.expand(len(share.outside) - len(local_offsets), *routes_UMK.shape[1:])
    return torch.cat([routes_UMK[local_offsets], padded])
