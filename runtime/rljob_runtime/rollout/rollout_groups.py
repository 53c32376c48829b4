"""The process groups of a rollout rank; made once, when all rollout ranks are alive.

Called by the device worker after `init_process_group`, and handed to `make_torch_rollout`.
"""

import torch.distributed as dist

from rljob_runtime.parallel.process_groups import GroupsByPurpose, check_size
from rljob_runtime.rollout.rollout_grid import Purpose, RolloutGrid


class RolloutGroups(GroupsByPurpose[Purpose]):
    """A rollout rank's: `groups[Purpose.TENSOR]`. The default group's ranks are the grid's.

    timeout_seconds: of one collective, in which a rank waits for what others generate, too.
    """

    def __init__(self, grid: RolloutGrid, *, timeout_seconds: float) -> None:
        check_size(grid.size, str(grid.degrees))
        self.grid = grid
        members = {purpose: list(grid.group(purpose, dist.get_rank())) for purpose in Purpose}
        super().__init__(members, role="rollout", timeout_seconds=timeout_seconds)

    @property
    def shares_models(self) -> bool:
        """Whether a model is on several ranks."""
        return self[Purpose.MODEL] is not None
