"""Both ends of a decoder where ranks share vocabulary and tokens.

Set on the decoder by `policy`; the form of one device is `models.ends`. Every rank of a replica gets all
log-probs, and computes the same loss of them.
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
from rljob_runtime.parallel.sequence import gather_rows, sum_parts
from rljob_runtime.parallel.vocabulary import VocabularyShare, embed_tokens


class SharedEnds:
    """An `Ends`. vocabulary: ids of all ranks."""

    def __init__(self, vocabulary: int, groups: ProcessGroups) -> None:
        self._place, self._degrees = groups.grid.place(groups.rank), groups.grid.degrees
        self._tensor, self._context = groups[Purpose.TENSOR], groups[Purpose.CONTEXT]
        self.held = VocabularyShare.of(vocabulary, self._tensor)

    def share(self, packing: Packing) -> Packing:
        """Tokens and positions of this context rank, padding as token 0 at position 0; and what a vision
        tower gave the tokens of this rank's hidden states, and their routes."""
        share = self.share_of(packing.segments)
        places_u = torch.tensor(share.places, dtype=torch.int64, device=packing.tokens_U.device)
        padding = (0, share.inside - len(share.places))
        axes = (0, 0) * (packing.positions_U.ndim - 1)
        pictured = packing.pictured
        if pictured is not None:
            row_of_U = torch.full_like(packing.tokens_U, -1)
            own = places_u[share.outside.start : share.outside.stop]
            row_of_U[own] = torch.arange(len(own), device=own.device)
            pictured = pictured.cut(row_of_U)
        routes = packing.routes_UMK
        return replace(
            packing,
            routes_UMK=None if routes is None else _own_routes(routes, share, places_u),
            tokens_U=F.pad(packing.tokens_U[places_u], padding),
            positions_U=F.pad(packing.positions_U[places_u], axes + padding),
            pictured=pictured,
        )

    def embed(self, packing: Packing, weight_VH: Tensor) -> Tensor:
        """[U] → [S, H]."""
        return embed_tokens(packing.tokens_U, weight_VH, self.held)

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
        """[S, H] → [T] on all ranks: each context rank computes what its own positions predict."""
        places = self.share_of(packing.segments).places
        device = hidden_SH.device
        position_P = torch.full((packing.num_tokens,), -1, device=device)
        position_P[torch.tensor(places, dtype=torch.int64, device=device)] = torch.arange(
            len(places), device=device
        )
        position_T = position_P[packing.predicting_L[packing.row_of_T]]
        own_T = position_T >= 0
        position_l, row_t = torch.unique(position_T[own_T], return_inverse=True)
        hidden_lH = gather_rows(hidden_SH, self._tensor).index_select(0, position_l)
        logprobs_t, entropy_t = linear_logprobs(
            hidden_lH,
            weight_VH,
            packing.target_T[own_T],
            row_t,
            temperature=temperature,
            with_entropy=True,
            ids=None if self._tensor is None else self.held,
            rows=len(self.held.below(text_ids)),
        )
        assert entropy_t is not None, "it was asked for"
        found_2T = torch.zeros(2, len(own_T), device=hidden_SH.device)
        found_2T = found_2T.masked_scatter(own_T, torch.stack([logprobs_t, entropy_t.detach()]))
        logprobs_T, entropy_T = sum_parts(found_2T, self._context)
        return TokenLogprobs(
            logprobs_T=logprobs_T.clone(),  # not a view: FSDP2 hooks what a model returns
            entropy_T=entropy_T.detach() if with_entropy else None,
        )

    def values(self, hidden_SH: Tensor, score: Matrix, packing: Packing) -> Tensor:
        """[S, H] → [T] on all ranks: each computes those of its own tokens."""
        share = self.share_of(packing.segments)
        first, count = share.outside.start, share.real_outside
        own = torch.tensor(
            share.places[first : first + count], dtype=torch.int64, device=hidden_SH.device
        )
        values_S: Tensor = score(hidden_SH)[:count, 0].float()
        values_P = values_S.new_zeros(packing.num_tokens).index_put((own,), values_S)
        values_P = sum_parts(sum_parts(values_P, self._tensor), self._context)
        return values_P[packing.predicting_L[packing.row_of_T]]

    def router_load(self, experts: MoeArchitecture, packing: Packing) -> RouterLoad:
        """Counts this rank's tokens without padding, and adds up those of the replica."""
        return RouterLoad(
            experts,
            num_tokens=self.share_of(packing.segments).real_outside,
            over_ranks=lambda values: sum_parts(sum_parts(values, self._tensor), self._context),
        )

    def share_of(self, segments: Segments) -> TokenShare:
        """This rank's tokens of a batch."""
        return token_share(segments, self._place, self._degrees)


def _own_routes(routes_UMK: Tensor, share: TokenShare, places_u: Tensor) -> Tensor:
    """[P, M, K] → [S, M, K]. Padding goes to the first experts, K different ones."""
    own = places_u[share.outside.start : share.outside.stop]
    padding = torch.arange(routes_UMK.shape[2], device=own.device).to(routes_UMK.dtype)
    padded = padding.expand(len(share.outside) - len(own), *routes_UMK.shape[1:])
    return torch.cat([routes_UMK[own], padded])
