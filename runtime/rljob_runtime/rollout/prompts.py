"""Cache the prompts of running sequences in the KV cache: in each sequence's row, or once a group.

Called by `slots` and `waiting` of the `torch` rollout engine.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from rljob_runtime.models.fused.fused_decoder import StorePrompt
from rljob_runtime.models.fused.kept import KVCache, Prefixes, make_prefixes
from rljob_runtime.rollout.rollout_engine import PromptGroup


class Prompts(Protocol):
    """The cached keys and values of groups' prompts, under the weights that computed them."""

    in_rows: bool
    """Whether a row begins with its prompt."""

    @property
    def num_free(self) -> int:
        """The number of further groups that fit, apart from rows."""
        ...

    def keep(
        self, groups: Sequence[PromptGroup], counts: Sequence[int], first_row: int
    ) -> StorePrompt:
        """Return a function that stores the prompts' keys and values. The first `counts` samples of these
        groups are in the rows from first_row on."""
        ...

    def repeat(self, group: PromptGroup, running: Sequence[PromptGroup], rows: slice) -> bool:
        """Return whether these rows have the prompt of a group that was cached earlier. running: groups of
        the rows before."""
        ...

    def retain(self, groups: Iterable[PromptGroup]) -> None:
        """Evict the prompts of all other groups."""
        ...

    def prefixes(self, running: Sequence[PromptGroup]) -> Prefixes | None:
        """Return the shared prefixes of these rows' groups, where the rows do not hold them."""
        ...


class RowPrompts:
    """`Prompts` that each row stores."""

    in_rows = True

    def __init__(self, cache: KVCache) -> None:
        self._rows = cache.rows

    @property
    def num_free(self) -> int:
        """The number of rows. See `Prompts.num_free`."""
        return self._rows.shape[2]

    def keep(
        self, groups: Sequence[PromptGroup], counts: Sequence[int], first_row: int
    ) -> StorePrompt:
        """Store the prompt in the rows. See `Prompts.keep`."""
        device = self._rows.device
        group_of_B = torch.repeat_interleave(torch.tensor(counts)).to(device)
        rows = slice(first_row, first_row + len(group_of_B))

        def store(layer: int, key_value: Tensor) -> None:
            self._rows[layer, :, rows, :, : key_value.shape[3]] = key_value.index_select(
                1, group_of_B
            )

        return store

    def repeat(self, group: PromptGroup, running: Sequence[PromptGroup], rows: slice) -> bool:
        """Copy the prompt of a running sample; there is none once all have ended. See `Prompts.repeat`."""
        source = next((row for row, other in enumerate(running) if other is group), None)
        if source is None:
            return False
        length = len(group.prefix)
        self._rows[:, :, rows, :, :length] = self._rows[:, :, source, None, :, :length]
        return True

    def retain(self, groups: Iterable[PromptGroup]) -> None:
        """Do nothing: a prompt leaves with its row. See `Prompts.retain`."""

    def prefixes(self, running: Sequence[PromptGroup]) -> None:
        """Return None: rows hold their prompts. See `Prompts.prefixes`."""


class SharedPrompts:
    """`Prompts` that are stored once a group, as long as a sample of the group runs or waits.

    They fill the first slots without a gap: the last ones move into slots that become free.
    """

    in_rows = False

    def __init__(self, cache: KVCache) -> None:
        self._prefixes = cache.prefixes
        self.groups: list[PromptGroup] = []

    @property
    def num_free(self) -> int:
        """The number of free slots. See `Prompts.num_free`."""
        return self._prefixes.shape[2] - len(self.groups)

    def keep(
        self, groups: Sequence[PromptGroup], counts: Sequence[int], first_row: int
    ) -> StorePrompt:
        """Store each prompt once. See `Prompts.keep`."""
        slots = slice(len(self.groups), len(self.groups) + len(groups))
        self.groups += groups

        def store(layer: int, key_value: Tensor) -> None:
            self._prefixes[layer, :, slots, :, : key_value.shape[3]] = key_value

        return store

    def repeat(self, group: PromptGroup, running: Sequence[PromptGroup], rows: slice) -> bool:
        """Return whether the group's prompt is cached. See `Prompts.repeat`."""
        return any(group is cached for cached in self.groups)

    def retain(self, groups: Iterable[PromptGroup]) -> None:
        """Evict prompts and close the gaps. See `Prompts.retain`."""
        retained_ids = {id(group) for group in groups}
        slot = 0
        while slot < len(self.groups):
            if id(self.groups[slot]) in retained_ids:
                slot += 1
                continue
            last = self.groups.pop()
            if slot < len(self.groups):
                length = len(last.prefix)
                source = self._prefixes[:, :, len(self.groups), :, :length]
                self._prefixes[:, :, slot, :, :length] = source
                self.groups[slot] = last

    def prefixes(self, running: Sequence[PromptGroup]) -> Prefixes:
        """Return the prefix of each row. See `Prompts.prefixes`."""
        slot_of = {id(group): slot for slot, group in enumerate(self.groups)}
        return make_prefixes(
            [slot_of[id(group)] for group in running],
            [len(group.prefix) for group in self.groups],
            heads=self._prefixes.shape[3],
            dtype=self._prefixes.dtype,
            device=self._prefixes.device,
        )
