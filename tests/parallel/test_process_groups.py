"""Process groups made from rank arithmetic: each adds up over exactly its ranks."""

import re
import time

import pytest
import torch
import torch.distributed as dist
from forked_ranks import RanksFailed, on_ranks

from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose, RankGrid

GRIDS = {
    "context, experts": RankGrid(UpdateDegrees(data=2, context=2, expert=2, pipeline=1)),
    "tensor, pipeline": RankGrid(UpdateDegrees(data=1, tensor=2, pipeline=2)),
    "all": RankGrid(UpdateDegrees(data=2, tensor=2, pipeline=2, expert=2)),
}


@pytest.mark.parametrize("name", GRIDS)
def test_each_group_is_of_the_ranks_that_arithmetic_says(name):
    grid = GRIDS[name]

    def members(rank: int) -> dict[str, list[int] | None]:
        groups = ProcessGroups(grid, timeout_seconds=30)
        return {purpose.value: together(groups[purpose], rank) for purpose in Purpose}

    def together(group: dist.ProcessGroup | None, rank: int) -> list[int] | None:
        if group is None:
            return None
        seen = torch.zeros(grid.size, dtype=torch.int64)
        seen[rank] = 1
        dist.all_reduce(seen, group=group)
        return seen.nonzero().flatten().tolist()

    results = on_ranks(grid.size, members)

    for rank, found in enumerate(results):
        for purpose in Purpose:
            expected = grid.group(purpose, rank)
            assert found[purpose.value] == (expected if len(expected) > 1 else None)


def test_another_number_of_processes_than_the_grid_has_is_refused():
    with pytest.raises(RanksFailed, match="2 processes for the 4 ranks"):
        on_ranks(2, lambda rank: ProcessGroups(GRIDS["tensor, pipeline"], timeout_seconds=5))


def test_a_member_that_does_not_come_is_an_error_that_names_the_group():
    def make(rank: int) -> None:
        if rank == 3:
            time.sleep(60)
        ProcessGroups(GRIDS["tensor, pipeline"], timeout_seconds=1)

    with pytest.raises(RanksFailed) as caught:
        on_ranks(4, make, seconds=30)

    assert re.search(r"WorkerError: update rank 2: ranks \[2, 3\] did not", caught.value.reasons[2])
