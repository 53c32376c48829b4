"""The process groups of a rank, for every purpose; made once, when all update ranks are alive.

Called by the device worker after `init_process_group`. Only members make a group, so that the number of
groups of a large job costs a rank nothing.
"""

from datetime import timedelta

import torch.distributed as dist
from torch.distributed import ProcessGroup

from rljob_runtime.errors import WorkerError
from rljob_runtime.parallel.ranks import Purpose, RankGrid


class ProcessGroups:
    """This process' group of each purpose: `groups[Purpose.TENSOR]`; None where it would be alone.

    The default group's ranks are the grid's. Purposes with the same ranks share a group, and so its
    order of collectives. timeout_seconds: of one collective; after it the group's ranks raise
    RuntimeError. Raises WorkerError when a member does not come in that time.
    """

    def __init__(self, grid: RankGrid, *, timeout_seconds: float) -> None:
        assert dist.get_world_size() == grid.size, (
            f"{dist.get_world_size()} processes for the {grid.size} ranks of {grid.degrees}"
        )
        self.rank = dist.get_rank()
        self.grid = grid
        self._timeout = timedelta(seconds=timeout_seconds)
        self._made: dict[tuple[int, ...], ProcessGroup] = {}
        self._of = {
            purpose: self._make(tuple(grid.group(purpose, self.rank))) for purpose in Purpose
        }

    def __getitem__(self, purpose: Purpose) -> ProcessGroup | None:
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
                    f"update rank {self.rank}: ranks {list(ranks)} did not all come to make a group "
                    f"within {self._timeout.total_seconds():g} s: {error}"
                ) from error
            assert isinstance(made, ProcessGroup), f"{ranks} lack this rank {self.rank}"
            self._made[ranks] = made
        return self._made[ranks]
