"""The process groups of a rank, one for each purpose; created once, when all ranks of its layout are alive.

Called by the device worker after `init_process_group`. Only members create a group, so that the number of
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
    """This process' group of each purpose; None where the group has a single rank.

    members: this rank's group of each purpose, by ranks of the default group. Purposes with the same ranks
    share a group, and so its order of collectives. role: the kind of these ranks, for errors.
    timeout_seconds: the limit of one collective; after it the group's ranks raise RuntimeError. Raises
    WorkerError when a member does not join in that time.
    """

    def __init__(
        self, members: Mapping[P, list[int]], *, role: str, timeout_seconds: float
    ) -> None:
        self.rank = dist.get_rank()
        self._role, self._timeout = role, timedelta(seconds=timeout_seconds)
        self._groups: dict[tuple[int, ...], ProcessGroup] = {}
        self._by_purpose = {purpose: self._make(tuple(ranks)) for purpose, ranks in members.items()}

    def __getitem__(self, purpose: P) -> ProcessGroup | None:
        return self._by_purpose[purpose]

    def _make(self, ranks: tuple[int, ...]) -> ProcessGroup | None:
        if len(ranks) == 1:
            return None
        if ranks not in self._groups:
            try:
                group = dist.new_group(
                    list(ranks), timeout=self._timeout, use_local_synchronization=True
                )
            except RuntimeError as error:
                raise WorkerError(
                    f"{self._role} rank {self.rank}: ranks {list(ranks)} did not all come to make a "
                    f"group within {self._timeout.total_seconds():g} s: {error}"
                ) from error
            assert isinstance(group, ProcessGroup), f"{ranks} lack this rank {self.rank}"
            self._groups[ranks] = group
        return self._groups[ranks]


class ProcessGroups(GroupsByPurpose[Purpose]):
    """The groups of an update rank, such as `groups[Purpose.TENSOR]`. The default group's ranks are the
    grid's."""

    def __init__(self, grid: RankGrid, *, timeout_seconds: float) -> None:
        check_size(grid.size, str(grid.degrees))
        self.grid = grid
        members = {purpose: grid.group(purpose, dist.get_rank()) for purpose in Purpose}
        super().__init__(members, role="update", timeout_seconds=timeout_seconds)


def check_size(ranks: int, degrees: str) -> None:
    """Assert that the default group has as many processes as a layout has ranks."""
    assert dist.get_world_size() == ranks, (
        f"{dist.get_world_size()} processes for the {ranks} ranks of {degrees}"
    )
