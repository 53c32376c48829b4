"""Who leaves a world of processes breaks its connections, whoever still holds the groups."""

import time

import pytest
import torch
import torch.distributed as dist
from forked_ranks import on_ranks
from torch._C._distributed_c10d import PrefixStore
from torch.distributed.distributed_c10d import _get_default_store

from rljob_runtime.devices.meetings import SignedStore, Signer
from rljob_runtime.devices.world_connections import WorldConnections

SIZE, GIVES_UP = 3, 1


def waits_for_who_gave_up(rank: int) -> tuple[int, float, str]:
    """Connections that the rank broke, how long it waited in a sum, and what it heard there."""
    connections, store = WorldConnections(), PrefixStore("own", _get_default_store())
    connections.begin(SignedStore(store, Signer("own")), rank, SIZE)
    with connections.tracking_groups():
        group = dist.new_group()
    with connections.tracking_groups():
        other = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)
    dist.all_reduce(torch.ones(1), group=other)
    began = time.monotonic()
    if rank == GIVES_UP:
        broken = connections.cut()  # and holds the groups
        store.get("all have heard")
        return broken, 0.0, ""
    with pytest.raises(RuntimeError) as heard:
        dist.all_reduce(torch.ones(1), group=group)
    waited = time.monotonic() - began
    with pytest.raises(RuntimeError):
        dist.all_reduce(torch.ones(1), group=other)
    if store.add("heard", 1) == SIZE - 1:
        store.set("all have heard", "")
    return 0, waited, str(heard.value)


def test_who_waits_for_one_that_gave_up_hears_it_though_it_holds_the_group():
    told = on_ranks(SIZE, waits_for_who_gave_up)

    assert told[GIVES_UP][0] == 2 * (SIZE - 1)
    for rank in (0, 2):
        assert "closed" in told[rank][2]
