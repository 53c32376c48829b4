"""The process groups of a rollout rank; made once, when all rollout ranks are alive.

Called by the device worker after `init_process_group`, and handed to `make_torch_rollout`.
"""

from datetime import timedelta

import torch.distributed as dist
from torch.distributed import ProcessGroup

from rljob_runtime.engines.parallel_rollout.grid import Purpose, RolloutGrid
from rljob_runtime.errors import WorkerError


class RolloutGroups:
    """This process' group of each purpose: `groups[Purpose.TENSOR]`; None where it would be alone.

    The default group's ranks are the grid's. timeout_seconds: of one collective, in which a rank waits
    for what others generate, too; after it the group's ranks raise RuntimeError. Raises WorkerError when
    a member does not come in that time.
    """

    def __init__(self, grid: RolloutGrid, *, timeout_seconds: float) -> None:
        assert dist.get_world_size() == grid.size, (
            f"{dist.get_world_size()} processes for the {grid.size} ranks of {grid.degrees}"
        )
        self.rank, self.grid = dist.get_rank(), grid
        self._timeout = timedelta(seconds=timeout_seconds)
        self._made: dict[tuple[int, ...], ProcessGroup] = {}
        self._of = {
            purpose: self._make(tuple(grid.group(purpose, self.rank))) for purpose in Purpose
        }

    def __getitem__(self, purpose: Purpose) -> ProcessGroup | None:
        return self._of[purpose]

    @property
    def shares_models(self) -> bool:
        """Whether a model is on several ranks."""
        return self[Purpose.MODEL] is not None

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
                    f"rollout rank {self.rank}: ranks {list(ranks)} did not all come to make a group "
                    f"within {self._timeout.total_seconds():g} s: {error}"
                ) from error
            assert isinstance(made, ProcessGroup), f"{ranks} lack this rank {self.rank}"
            self._made[ranks] = made
        return self._made[ranks]
