"""Sample tokens where tensor ranks share the vocabulary and the last stage alone has logits.

Created by `rank_share`; `sampling` is the form for one rank. All ranks of a model get the same tokens.
"""

# B sequences, V ids of one rank, W ids of all ranks, M ids of the rank with most, R tensor ranks

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_api.model.layout import share
from rljob_runtime.devices.collectives import rank_of, size_of
from rljob_runtime.devices.kernels.linear_logprobs import NO_LOGIT
from rljob_runtime.devices.wire import broadcast, start_gather, start_sum
from rljob_runtime.parallel.vocabulary import VocabularyShare
from rljob_runtime.rollout.rollout_engine import Sampling
from rljob_runtime.rollout.rollout_grid import RolloutPurpose
from rljob_runtime.rollout.rollout_groups import RolloutGroups
from rljob_runtime.rollout.sampling import draw

LARGEST_UNIFORM = 1.0 - 2.0**-53


class RankDraw:
    """Called as `sampling.draw`, with the logits of this rank's ids; a stage before the last has none, and
    receives the tokens. text_ids: ids from this one on are never sampled; None: all may be."""

    def __init__(
        self, vocabulary: int, groups: RolloutGroups, *, text_ids: int | None = None
    ) -> None:
        self._vocabulary, self._pipeline = vocabulary, groups[RolloutPurpose.PIPELINE]
        self._tensor, self._text_ids = groups[RolloutPurpose.TENSOR], text_ids
        self._last = size_of(self._pipeline) - 1

    def __call__(
        self, logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling
    ) -> tuple[Tensor, Tensor]:
        """Return tokens and log-probs. Broadcasts [2, B] over the stages."""
        shared_2B = uniforms_B.new_empty(2, len(uniforms_B))
        if rank_of(self._pipeline) == self._last:
            shared_2B = torch.stack(
                [x.double() for x in self._drawn(logits_BV, uniforms_B, sampling)]
            )
        tokens_B, logprobs_B = broadcast(shared_2B, self._last, self._pipeline)
        return tokens_B.long(), logprobs_B.float()

    def logprobs(self, logits_BV: Tensor, tokens_B: Tensor) -> Tensor:
        """Return the log-probs of these tokens. All-reduces [B] over tensor ranks, and broadcasts [B] over
        the stages."""
        logprobs_B = logits_BV.new_empty(len(tokens_B))
        if rank_of(self._pipeline) == self._last:
            logits_BV = self._text_logits(logits_BV)
            ids = share(self._vocabulary, rank_of(self._tensor), size_of(self._tensor))
            row_B, is_local_B = (
                tokens_B - ids.start,
                (tokens_B >= ids.start) & (tokens_B < ids.stop),
            )
            logit_B = logits_BV.gather(1, row_B.clamp(0, len(ids) - 1)[:, None])[:, 0]
            logit_B = start_sum(logit_B.masked_fill(~is_local_B, 0.0), self._tensor).wait()
            norm_RB = start_gather(logits_BV.logsumexp(-1)[None], self._tensor).wait()
            logprobs_B = logit_B - norm_RB.logsumexp(0)
        return broadcast(logprobs_B, self._last, self._pipeline)

    def _text_logits(self, logits_BV: Tensor) -> Tensor:
        """Return the logits with NO_LOGIT for ids that are never sampled."""
        text_vocabulary = VocabularyShare.of(self._vocabulary, self._tensor).below(self._text_ids)
        others = logits_BV.shape[1] - len(text_vocabulary)
        return (
            F.pad(logits_BV[:, : len(text_vocabulary)], (0, others), value=NO_LOGIT)
            if others
            else logits_BV
        )

    def _drawn(
        self, logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling
    ) -> tuple[Tensor, Tensor]:
        logits_BV = self._text_logits(logits_BV)
        if self._tensor is None:
            return draw(logits_BV, uniforms_B, sampling)
        if not sampling.greedy and (sampling.top_k or sampling.top_p < 1):
            logits_BW = all_logits(logits_BV, self._vocabulary, self._tensor)
            return draw(logits_BW, uniforms_B, sampling)
        first = share(self._vocabulary, self._tensor.rank(), self._tensor.size()).start
        return draw_shared(logits_BV, uniforms_B, sampling, first, self._tensor)


def draw_shared(
    logits_BV: Tensor, uniforms_B: Tensor, sampling: Sampling, first: int, group: ProcessGroup
) -> tuple[Tensor, Tensor]:
    """Sample on each rank among its ids, from `first` on, with its remainder of the uniform. The token is
    that of the rank in whose interval the uniform is, or with the largest logit. Gathers [1, B], then [2,
    B]."""
    if sampling.temperature != 1.0:
        logits_BV = logits_BV / sampling.temperature
        sampling = replace(sampling, temperature=1.0)
    norm_B = logits_BV.logsumexp(-1).double()
    norm_RB = start_gather(norm_B[None], group).wait()
    total_norm_B = norm_RB.logsumexp(0)
    ends_RB = (norm_RB - total_norm_B).exp().cumsum(0)
    threshold_B = uniforms_B * ends_RB[-1]
    start_B, end_B = F.pad(ends_RB, (0, 0, 1, 0))[group.rank() :][:2]
    # A rank without a share of the probability divides by 0; its token is not used.
    inside_B = ((threshold_B - start_B) / (end_B - start_B)).nan_to_num(0.0)
    row_B, logprob_B = draw(logits_BV, inside_B.clamp(0.0, LARGEST_UNIFORM), sampling)
    local_2B = torch.stack([(row_B + first).double(), logprob_B + norm_B])
    tokens_RB, logits_RB = start_gather(local_2B[None], group).wait().unbind(1)
    if sampling.greedy:
        owner_1B = logits_RB.argmax(0, keepdim=True)
    else:
        owner_1B = (ends_RB <= threshold_B).sum(0, keepdim=True)
    tokens_B, logits_B = (x.gather(0, owner_1B)[0] for x in (tokens_RB, logits_RB))
    return tokens_B, logits_B - total_norm_B


def all_logits(logits_BV: Tensor, vocabulary: int, group: ProcessGroup) -> Tensor:
    """All-gather the logits, [B, V] → [B, W]. Sends [B, M]."""
    rows, ranks = len(logits_BV), group.size()
    id_counts = [len(share(vocabulary, rank, ranks)) for rank in range(ranks)]
    padded_BM = F.pad(logits_BV, (0, id_counts[0] - logits_BV.shape[1]))
    gathered = torch.split(start_gather(padded_BM, group).wait(), rows)
    return torch.cat([x[:, :n] for x, n in zip(gathered, id_counts, strict=True)], dim=1)
