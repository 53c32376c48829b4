"""Samples that wait for a row of the running batch, in order, and their prompts' states.

Called by the `torch` rollout engine. A prompt is computed once, when its first sample gets a row. Where each
row holds its prompt, it is computed again if no sample of the group runs when a later one starts.
"""

# B samples, G groups, P longest prompt, V vocabulary

from collections.abc import Sequence

import torch
from torch import Tensor

from rljob_runtime.errors import ConfigError
from rljob_runtime.models.fused.fused_decoder import FusedDecoder, StorePrompt
from rljob_runtime.rollout.rollout_engine import PromptGroup, Sampling
from rljob_runtime.rollout.sight import Sight
from rljob_runtime.rollout.slots import Seat, Slots

PREFILL_TOKENS = 8192  # padded prompt tokens of one prefill


class WaitingSamples:
    """The samples of these groups, first to last. sight: None where no prompt shows pictures."""

    def __init__(
        self,
        model: FusedDecoder,
        groups: Sequence[PromptGroup],
        device: str,
        sight: Sight | None = None,
    ) -> None:
        self._model, self._groups, self._device = model, list(groups), device
        self._sight = sight
        self._next_group = self._next_sample = 0
        self._logits_1V = torch.empty(0)  # after the prompt of a partly admitted group
        self._routes: list[Tensor | None] = []  # of the prompts computed last, [n, M, K], if kept
        self._prompt_version = 0  # of the weights that computed them
        self.left = sum(len(group.uids) for group in groups)

    @property
    def begun(self) -> list[PromptGroup]:
        """The group that is partly admitted, if there is one."""
        return [self._groups[self._next_group]] if self._next_sample else []

    def add(self, groups: Sequence[PromptGroup]) -> None:
        """Insert samples before those that have not begun."""
        index = self._next_group + (self._next_sample > 0)
        self._groups[index:index] = groups
        self.left += sum(len(group.uids) for group in groups)

    def can_admit(self, slots: Slots) -> bool:
        """Return whether there are a sample, a row for it, and room for its prompt."""
        return bool(self.left and slots.num_free and (self._next_sample or slots.prompts.num_free))

    def admit(self, slots: Slots, version: int) -> tuple[slice, Tensor]:
        """Admit the next samples: the remainder of one group, or the first ones of new groups.

        Returns their rows and the logits of their first tokens.
        """
        first_row, running = len(slots.seats), slots.running
        if self._next_sample:
            count = min(slots.num_free, self._remaining(self._next_group))
            rows = slice(first_row, first_row + count)
            if slots.prompts.repeat(self._groups[self._next_group], running, rows):
                slots.add(self._take(count, version, self._routes[-1]))
                return rows, self._logits_1V.expand(count, -1)
        counts = self._fresh_counts(slots.num_free, slots.prompts.num_free)
        self._prompt_version = version
        groups = self._groups[self._next_group : self._next_group + len(counts)]
        logits_GV = self._prefill(groups, slots.prompts.keep(groups, counts, first_row))
        counts_and_routes = zip(counts, self._routes, strict=True)
        rows = slots.add(
            [
                seat
                for count, prompt_routes in counts_and_routes
                for seat in self._take(count, version, prompt_routes)
            ]
        )
        self._logits_1V = logits_GV[-1:]
        group_of_B = torch.repeat_interleave(torch.tensor(counts)).to(self._device)
        return rows, logits_GV.index_select(0, group_of_B)

    def _remaining(self, group: int) -> int:
        begun = self._next_sample if group == self._next_group else 0
        return len(self._groups[group].uids) - begun

    def _fresh_counts(self, rows: int, prompts: int) -> list[int]:
        """Return how many samples of each of the next groups are admitted; their padded prompts fit one
        prefill."""
        counts: list[int] = []
        width = 0
        last = min(len(self._groups), self._next_group + prompts)
        for group in range(self._next_group, last):
            width = max(width, len(self._groups[group].prefix))
            if rows <= 0 or (counts and (len(counts) + 1) * width > PREFILL_TOKENS):
                break
            counts.append(min(rows, self._remaining(group)))
            rows -= counts[-1]
        return counts

    def _prefill(self, groups: Sequence[PromptGroup], keep: StorePrompt) -> Tensor:
        prompts = [torch.tensor(group.prefix) for group in groups]
        tokens_GP = torch.nn.utils.rnn.pad_sequence(prompts, batch_first=True)
        lengths_G = torch.tensor([len(prompt) for prompt in prompts])
        pictures = self._sight.inputs_of(groups, self._device) if self._sight is not None else None
        tokens_GP, lengths_G = tokens_GP.to(self._device), lengths_G.to(self._device)
        logits_GV = self._model.prefill(tokens_GP, lengths_G, keep, pictures)
        self._routes = [None] * len(groups)
        if self._model.keeps_routes:
            routes_G = torch.split(self._model.routes(), tokens_GP.shape[1])
            self._routes = [
                routes[group.routed : len(group.prefix)]
                for routes, group in zip(routes_G, groups, strict=True)
            ]
        return logits_GV

    def _take(self, count: int, version: int, routes: Tensor | None) -> list[Seat]:
        """Return the seats of the next samples. The first token is sampled from the logits after the prompt,
        by the version that computed them. routes: of the prompt, if kept."""
        first_token = self._prompt_version
        group, first = self._groups[self._next_group], self._next_sample
        position = None
        if self._sight is not None and group.all_pictures:
            position = self._sight.next_position(group)
        self._next_sample += count
        self.left -= count
        if self._next_sample == len(group.uids):
            self._next_group, self._next_sample = self._next_group + 1, 0
        return [
            Seat(
                uid=group.uids[sample],
                seed=group.seeds[sample],
                group=group,
                version=first_token,
                switches=[(1, version)] if version != first_token else [],
                position=position,
                routes=routes,
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
