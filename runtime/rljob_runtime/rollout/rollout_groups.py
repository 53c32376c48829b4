"""The process groups of a rollout rank; created once, when all rollout ranks are alive.

Called by the device worker after `init_process_group`, and passed to `make_torch_rollout`.
"""

import torch.distributed as dist

from rljob_runtime.parallel.process_groups import GroupsByPurpose, check_size
from rljob_runtime.rollout.rollout_grid import RolloutGrid, RolloutPurpose


class RolloutGroups(GroupsByPurpose[RolloutPurpose]):
    """The groups of a rollout rank, such as `groups[RolloutPurpose.TENSOR]`. The default group's ranks are
    the grid's.

    timeout_seconds: of one collective, which includes the time that a rank waits while others generate.
    """

    def __init__(self, grid: RolloutGrid, *, timeout_seconds: float) -> None:
        check_size(grid.size, str(grid.degrees))
        self.grid = grid
        members = {
            purpose: list(grid.group(purpose, dist.get_rank())) for purpose in RolloutPurpose
        }
        super().__init__(members, role="rollout", timeout_seconds=timeout_seconds)

    @property
    def shares_models(self) -> bool:
        """Whether a model is on several ranks."""
        return self[RolloutPurpose.MODEL] is not None
