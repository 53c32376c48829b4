"""The states of devices, made as their processes make them, on forked ranks."""

import json
from pathlib import Path
from typing import Any

import torch.distributed as dist
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import ResolvedJob, resolve
from rljob_runtime.devices.backend_table import open_backend
from rljob_runtime.devices.meetings import Rendezvous
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.processes.device_roles import device_roles
from rljob_runtime.worker.build import DeviceContext, make_states
from rljob_runtime.worker.device_ranks import join
from rljob_runtime.worker.device_states import DeviceStates

NOWHERE = DockAddress(token="", warehouses=(), controllers={}, shared_memory="none")


def job_of(
    path: Path,
    update: dict[str, Any],
    rollout: dict[str, Any],
    *,
    lora: dict[str, Any] | None = None,
    **spec: Any,
) -> ResolvedJob:
    job = json.loads(json.dumps(SMALL_JOB))
    job["spec"]["model"] = {"path": str(path)}
    job["spec"]["update"]["parallelism"] = update
    if lora is not None:
        job["spec"]["update"]["lora"] = lora
    job["spec"]["rollout"] = {"parallelism": rollout}
    job["spec"] |= spec
    return resolve(read_job(job))


def states_of(job: ResolvedJob, path: Path, rank: int) -> tuple[DeviceStates, Any]:
    """The device's states, as its process makes them."""
    meeting = Rendezvous("127.0.0.1")
    addresses: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(addresses, meeting.address)
    dist.destroy_process_group()
    backend, role = open_backend(job.spec.accelerator, rank=rank), device_roles(job)[rank]
    models = {"policy": path}
    context = DeviceContext(
        spec=job.spec, role=role, models=models, dock=lambda: NOWHERE, backend=backend
    )
    world = addresses[rank - role.world_rank]
    states = make_states(
        context, meet=lambda: join(backend, role, world, spec=job.spec, models=models)
    )
    return states, (backend, meeting)
