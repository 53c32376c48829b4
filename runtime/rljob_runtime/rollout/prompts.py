"""Where the prompts of running sequences lie in the KV cache: in each one's row, or once a group.

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
    """What is kept of the prompts of groups, under the weights that computed them."""

    in_rows: bool
    """Whether a row begins with its prompt."""

    @property
    def num_free(self) -> int:
        """Further groups that have room, apart from rows."""
        ...

    def keep(
        self, groups: Sequence[PromptGroup], counts: Sequence[int], first_row: int
    ) -> StorePrompt:
        """Takes what is kept of the prompts of these groups, whose first `counts` samples are in the rows
        from first_row on."""
        ...

    def repeat(self, group: PromptGroup, running: Sequence[PromptGroup], rows: slice) -> bool:
        """Whether these rows have the prompt of a group that was kept earlier. running: groups of the rows
        before."""
        ...

    def retain(self, groups: Iterable[PromptGroup]) -> None:
        """Forget the prompts of all other groups."""
        ...

    def prefixes(self, running: Sequence[PromptGroup]) -> Prefixes | None:
        """Those of the groups of these rows, where they do not lie in the rows."""
        ...


class RowPrompts:
    """`Prompts` that lie in each row."""

    in_rows = True

    def __init__(self, kept: KVCache) -> None:
        self._rows = kept.rows

    @property
    def num_free(self) -> int:
        """See Prompts."""
        return self._rows.shape[2]

    def keep(
        self, groups: Sequence[PromptGroup], counts: Sequence[int], first_row: int
    ) -> StorePrompt:
        """See Prompts."""
        device = self._rows.device
        group_of_B = torch.repeat_interleave(torch.tensor(counts)).to(device)
        rows = slice(first_row, first_row + len(group_of_B))

        def store(layer: int, kept: Tensor) -> None:
            self._rows[layer, :, rows, :, : kept.shape[3]] = kept.index_select(1, group_of_B)

        return store

    def repeat(self, group: PromptGroup, running: Sequence[PromptGroup], rows: slice) -> bool:
        """See Prompts. Copies that of a running sample; there is none once all have ended."""
        source = next((row for row, other in enumerate(running) if other is group), None)
        if source is None:
            return False
        length = len(group.prefix)
        self._rows[:, :, rows, :, :length] = self._rows[:, :, source, None, :, :length]
        return True

    def retain(self, groups: Iterable[PromptGroup]) -> None:
        """See Prompts."""

    def prefixes(self, running: Sequence[PromptGroup]) -> None:
        """See Prompts."""


class SharedPrompts:
    """`Prompts` each of which lies once, as long as a sample of its group runs or waits.

    They fill the first places without a gap: the last ones move into those that become free.
    """

    in_rows = False

    def __init__(self, kept: KVCache) -> None:
        self._prefixes = kept.prefixes
        self.groups: list[PromptGroup] = []

    @property
    def num_free(self) -> int:
        """See Prompts."""
        return self._prefixes.shape[2] - len(self.groups)

    def keep(
        self, groups: Sequence[PromptGroup], counts: Sequence[int], first_row: int
    ) -> StorePrompt:
        """See Prompts."""
        places = slice(len(self.groups), len(self.groups) + len(groups))
        self.groups += groups

        def store(layer: int, kept: Tensor) -> None:
            self._prefixes[layer, :, places, :, : kept.shape[3]] = kept

        return store

    def repeat(self, group: PromptGroup, running: Sequence[PromptGroup], rows: slice) -> bool:
        """See Prompts."""
        return any(group is held for held in self.groups)

    def retain(self, groups: Iterable[PromptGroup]) -> None:
        """See Prompts."""
        wanted = {id(group) for group in groups}
        place = 0
        while place < len(self.groups):
            if id(self.groups[place]) in wanted:
                place += 1
                continue
            last = self.groups.pop()
            if place < len(self.groups):
                length = len(last.prefix)
                source = self._prefixes[:, :, len(self.groups), :, :length]
                self._prefixes[:, :, place, :, :length] = source
                self.groups[place] = last

    def prefixes(self, running: Sequence[PromptGroup]) -> Prefixes:
        """See Prompts."""
        place_of = {id(group): place for place, group in enumerate(self.groups)}
        return make_prefixes(
            [place_of[id(group)] for group in running],
            [len(group.prefix) for group in self.groups],
            heads=self._prefixes.shape[3],
            dtype=self._prefixes.dtype,
            device=self._prefixes.device,
        )
