"""One device that trains and two that generate, as forked ranks that meet the way separated devices do."""

import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import ResolvedJob, resolve
from rljob_runtime.devices.backend_table import open_backend
from rljob_runtime.devices.meetings import Rendezvous
from rljob_runtime.devices.sync_group import SyncGroup
from rljob_runtime.processes.device_roles import device_roles
from rljob_runtime.weights.weight_sync import WeightSync
from rljob_runtime.worker.device_ranks import DeviceRanks, join


def make_job(degrees: dict[str, int]) -> ResolvedJob:
    """One device that trains, two that generate."""
    job = json.loads(json.dumps(SMALL_JOB))
    job["spec"]["accelerator"] = {"devicesPerNode": 3}
    job["spec"]["placement"] = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 2}
    job["spec"]["rollout"] = {"parallelism": degrees}
    return resolve(read_job(job))


def joined(rank: int, job: ResolvedJob, path: Path) -> tuple[DeviceRanks, SyncGroup]:
    """The device's groups, as its process makes them: of its world, and for weights."""
    meetings = Rendezvous("127.0.0.1")
    addresses: list[Any] = [None] * 3
    dist.all_gather_object(addresses, meetings.address)
    role = device_roles(job)[rank]
    world = Rendezvous("127.0.0.1")
    worlds: list[Any] = [None] * 3
    dist.all_gather_object(worlds, world.address)
    dist.destroy_process_group()
    backend = open_backend(job.spec.accelerator, rank=rank)
    ranks = join(
        backend, role, worlds[rank - role.world_rank], spec=job.spec, models={"policy": path}
    )
    group = SyncGroup(addresses[0], rank=rank, size=3)
    group.kept = (meetings, world)  # type: ignore[attr-defined]
    return ranks, group


def sync_of(
    group: SyncGroup,
    *,
    policy: Any = None,
    engine: Any = None,
    dtype: torch.dtype = torch.float32,
) -> WeightSync:
    return WeightSync(
        policy=policy,
        rollout=engine,
        dtype=dtype,
        synced=dtype,
        vocab_size=71,
        max_length=64,
        group=group,
    )
