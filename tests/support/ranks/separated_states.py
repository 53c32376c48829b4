"""The states of separated devices on forked ranks, with the meetings in which they exchange weights."""

from pathlib import Path
from typing import Any

import torch.distributed as dist
from colocated_states import job_of, states_of

from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.devices.meetings import Rendezvous
from rljob_runtime.devices.sync_group import SyncGroup
from rljob_runtime.worker.device_states import DeviceStates


def separated_job(
    path: Path,
    update: dict[str, Any],
    rollout: dict[str, Any],
    *,
    devices: tuple[int, int],
    **spec: Any,
) -> ResolvedJob:
    """devices: that train, and that generate."""
    training, generating = devices
    placement = {
        "mode": "separated",
        "updateDevices": training,
        "rolloutDevices": generating,
    }
    return job_of(
        path,
        update,
        rollout,
        placement=placement,
        accelerator={"devicesPerNode": training + generating},
        **spec,
    )


class SeparatedDevice:
    """One of them. `meet` joins the first `size` of all, for the n-th time."""

    def __init__(self, job: ResolvedJob, path: Path, rank: int, *, meetings: int = 1) -> None:
        self.rank = rank
        self._meetings = [Rendezvous("127.0.0.1") for _ in range(meetings)]
        given: list[list[str]] = [[]] * dist.get_world_size()
        dist.all_gather_object(given, [meeting.address for meeting in self._meetings])
        self._places = given[0]
        self.states: DeviceStates
        self.states, self._kept = states_of(job, path, rank)

    def meet(self, number: int, size: int, *, rank: int | None = None) -> None:
        """rank: of this device among them, else its own."""
        self.states.port.leave()
        place = self.rank if rank is None else rank
        group = SyncGroup(self._places[number], rank=place, size=size, name=f"device {self.rank}")
        self.states.port.join(group)
