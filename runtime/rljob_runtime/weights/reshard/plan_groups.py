"""Process groups of a plan's collectives. Called by `executor`.

torch names a group that only members make by how many groups the process has, which differs between devices
here. So all ranks go through all groups in one order; a rank that is no member goes on at once.
"""

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import ProcessGroup

from rljob_plan.resharding.resharding_plan import ReshardPlan, group_of
from rljob_runtime.errors import WorkerError


def make_groups(
    plan: ReshardPlan, machines: Sequence[frozenset[int]], timeout_seconds: float
) -> dict[tuple[int, ...], ProcessGroup]:
    """This rank's groups of more than two devices. plan: with the steps of all devices. machines: by rank,
    those that share its memory, and need no group among themselves.

    timeout_seconds: of one collective. Raises WorkerError when a member does not come in that time.
    """
    groups = {group_of(move) for moves in plan.moves for move in moves}
    groups = {group for group in groups if not machines[group[0]].issuperset(group)}
    limit = timedelta(seconds=timeout_seconds)
    own: dict[tuple[int, ...], ProcessGroup] = {}
    for group in sorted(group for group in groups if len(group) > 2):
        try:
            made = dist.new_group(list(group), timeout=limit)
        except RuntimeError as error:
            raise WorkerError(
                f"reshard rank {dist.get_rank()}: ranks {list(group)} did not all come to make a group "
                f"within {timeout_seconds:g} s: {error}"
            ) from error
        if isinstance(made, ProcessGroup):
            own[group] = made
    return own
