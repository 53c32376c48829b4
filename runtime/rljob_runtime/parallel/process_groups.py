"""The process groups of a rank, for every purpose; made once, when all ranks of its layout are alive.

Called by the device worker after `init_process_group`. Only members make a group, so that the number of
groups of a large job costs a rank nothing.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Generic, TypeVar

import torch.distributed as dist
from torch.distributed import ProcessGroup

from rljob_runtime.errors import WorkerError
from rljob_runtime.parallel.ranks import Purpose, RankGrid

P = TypeVar("P")


class GroupsByPurpose(Generic[P]):
    """This process' group of each purpose; None where it would be alone.

    members: this rank's group of each purpose, by ranks of the default group. Purposes with the same
    ranks share a group, and so its order of collectives. role: whose ranks these are, for errors.
    timeout_seconds: of one collective; after it the group's ranks raise RuntimeError. Raises WorkerError
    when a member does not come in that time.
    """

    def __init__(
        self, members: Mapping[P, list[int]], *, role: str, timeout_seconds: float
    ) -> None:
        self.rank = dist.get_rank()
        self._role, self._timeout = role, timedelta(seconds=timeout_seconds)
        self._made: dict[tuple[int, ...], ProcessGroup] = {}
        self._of = {purpose: self._make(tuple(ranks)) for purpose, ranks in members.items()}

    def __getitem__(self, purpose: P) -> ProcessGroup | None:
        return self._of[purpose]

    def _make(self, ranks: tuple[int, ...]) -> ProcessGroup | None:
        if len(ranks) == 1:
            return None
        if ranks not in self._made:
            try:
                made = dist.new_group(
                    list(ranks), timeout=self._timeout, use_local_synchronization=True
                )
            except RuntimeError as error:
                raise WorkerError(
                    f"{self._role} rank {self.rank}: ranks {list(ranks)} did not all come to make a "
                    f"group within {self._timeout.total_seconds():g} s: {error}"
                ) from error
            assert isinstance(made, ProcessGroup), f"{ranks} lack this rank {self.rank}"
            self._made[ranks] = made
        return self._made[ranks]


class ProcessGroups(GroupsByPurpose[Purpose]):
    """An update rank's: `groups[Purpose.TENSOR]`. The default group's ranks are the grid's."""

    def __init__(self, grid: RankGrid, *, timeout_seconds: float) -> None:
        check_size(grid.size, str(grid.degrees))
        self.grid = grid
        members = {purpose: grid.group(purpose, dist.get_rank()) for purpose in Purpose}
        super().__init__(members, role="update", timeout_seconds=timeout_seconds)


def check_size(ranks: int, degrees: str) -> None:
    """The default group has as many processes as a layout has ranks."""
    assert dist.get_world_size() == ranks, (
        f"{dist.get_world_size()} processes for the {ranks} ranks of {degrees}"
    )
