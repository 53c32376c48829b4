"""Samples that wait for a row of the running batch, in order, and their prompts' states.

Called by the `torch` rollout engine. A prompt is computed once, when its first sample gets a row,
and kept until its last one has got one.
"""

# B samples, G groups, P longest prompt, V vocabulary, N kept heads of a token, W width of each

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.engines.base import PromptGroup, Sampling
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.fused.decoder import FusedDecoder

PREFILL_TOKENS = 8192  # padded prompt tokens computed at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The sequence of a row. seed: of its uniforms. version: of the weights that it began with."""

    uid: str
    seed: int
    group: PromptGroup
    version: int

    @property
    def prefix_length(self) -> int:
        """Tokens before its first new one."""
        return len(self.group.token_ids) + len(self.group.begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """Sequences to be seated. cache: [layers, tensors, B, N, P, W]. logits_BV: of the first token."""

    seats: list[Seat]
    cache: Tensor
    logits_BV: Tensor


class Waiting:
    """The samples of these groups, first to last."""

    def __init__(self, model: FusedDecoder, groups: Sequence[PromptGroup], device: str) -> None:
        self._model, self._groups, self._device = model, groups, device
        self._next_group = self._next_sample = 0
        self._left_over: tuple[Tensor, Tensor] | None = None  # state of a half seated group
        self.left = sum(len(group.uids) for group in groups)

    def admit(self, rows: int, version: int) -> Admitted:
        """The next samples, at most `rows`: the rest of one group, or the start of fresh ones."""
        begun = self._left_over
        if begun is not None:
            counts = [min(rows, self._remaining())]
            cache, logits_GV = begun
        else:
            counts = self._fresh_counts(rows)
            cache, logits_GV = self._prefill(len(counts))
        seats = [seat for count in counts for seat in self._take(count, version)]
        self._left_over = (cache[:, :, -1:].clone(), logits_GV[-1:]) if self._next_sample else None
        group_of_B = torch.repeat_interleave(torch.tensor(counts)).to(self._device)
        return Admitted(
            seats=seats,
            cache=cache.index_select(2, group_of_B),
            logits_BV=logits_GV.index_select(0, group_of_B),
        )

    def _remaining(self) -> int:
        return len(self._groups[self._next_group].uids) - self._next_sample

    def _fresh_counts(self, rows: int) -> list[int]:
        """How many samples each of the next groups gets; their padded prompts fit one prefill."""
        counts: list[int] = []
        width = 0
        for group in self._groups[self._next_group :]:
            width = max(width, len(group.prefix))
            if rows <= 0 or (counts and (len(counts) + 1) * width > PREFILL_TOKENS):
                break
            counts.append(min(rows, len(group.uids)))
            rows -= counts[-1]
        return counts

    def _prefill(self, num_groups: int) -> tuple[Tensor, Tensor]:
        first = self._next_group
        prompts = [torch.tensor(g.prefix) for g in self._groups[first : first + num_groups]]
        tokens_GP = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)
        lengths_G = torch.tensor([len(prompt) for prompt in prompts])
        return self._model.prefill(tokens_GP.to(self._device), lengths_G.to(self._device))

    def _take(self, count: int, version: int) -> list[Seat]:
        group, first = self._groups[self._next_group], self._next_sample
        self._next_sample += count
        self.left -= count
        if self._next_sample == len(group.uids):
            self._next_group, self._next_sample = self._next_group + 1, 0
        return [
            Seat(
                uid=group.uids[sample],
                seed=group.seeds[sample],
                group=group,
                version=version,
            )
            for sample in range(first, first + count)
        ]


def check_lengths(groups: Sequence[PromptGroup], sampling: Sampling, max_length: int) -> None:
    """Raise ConfigError for an empty prompt and for one whose response might not fit."""
    for group in groups:
        total = len(group.token_ids) + sampling.max_response_length
        if not group.token_ids:
            raise ConfigError(f"the prompt of group {group.group} has no tokens")
        if total > max_length:
            raise ConfigError(
                f"prompt of {len(group.token_ids)} tokens (group {group.group}) and a response of "
                f"up to {sampling.max_response_length} do not fit {max_length} positions; raise "
                "spec.batch.maxPromptLength or drop longer prompts"
            )
