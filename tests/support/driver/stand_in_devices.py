"""A run of devices without a model, that come, go and fail between its steps as their roles' plan says."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from whole_runs import SMALL_JOB
from workers_here import Dies, Hangs

from rljob_api.check.load import read_job
from rljob_api.topology.elastic import DevicePlace
from rljob_api.topology.resolved import resolve
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.errors import WeightsError
from rljob_runtime.processes.calls import answers
from rljob_runtime.processes.device_pool import DevicePool
from rljob_runtime.processes.device_roles import device_roles, prepare
from rljob_runtime.processes.placement import Actors, Member
from rljob_runtime.processes.workers import Workers
from rljob_runtime.record.events import EventLog, plain, read_events
from rljob_runtime.run.elastic import RolloutScaler
from rljob_runtime.run.scale_requests import ScaleRequests
from rljob_runtime.worker.device_role import DeviceRole

Plan = dict[int, str]


class StandIn:
    """A device worker that does as its plan says: fail or die while it starts or joins."""

    def __init__(self, plan: Plan, role: DeviceRole, num_threads: int) -> None:
        self.group: tuple[str, int, int] | None = None
        self._does, self._rank = plan.get(role.rank), role.rank

    def die(self) -> NoReturn:
        raise Dies

    def address(self) -> str:
        return "10.0.0.1"

    def open_world(self, *present: str) -> str:
        return f"world of {len(present)} with device {self._rank}"

    def prepare(
        self, meeting: str | None, role: DeviceRole, meet_seconds: float | None
    ) -> DevicePlace:
        self.world = meeting
        if self._does == "fails to load":
            raise WeightsError("no such weights")
        if self._does == "dies":
            self.die()
        if self._does == "hangs":
            raise Hangs
        return DevicePlace(device=self._rank, host=f"host-{self._rank}", address="10.0.0.1")

    def open_sync(self) -> tuple[str, bool]:
        return f"meeting-{time.monotonic_ns()}", False

    def leave_sync(self) -> None:
        self.group = None

    def join_sync(self, address: str, rank: int, size: int) -> None:
        if self._does == "dies when it joins":
            self.die()
        self.group = (address, rank, size)

    def met_at(self) -> str | None:
        return self.world

    def synced(self) -> tuple[str, int, int] | None:
        return self.group


class StandInProcess(StandIn):
    """The same where it has a process of its own."""

    def die(self) -> NoReturn:
        os._exit(1)


class Run:
    """One device that trains and as many that generate as share a model; steps pass by `step`.

    workers: with so many devices a node.
    """

    def __init__(
        self,
        folder: Path,
        plan: Plan,
        *,
        workers: Callable[[int], Workers],
        kind: type[StandIn] = StandIn,
        prompts: int = 8,
        per_node: int = 1,
        together: int = 1,
    ) -> None:
        job = json.loads(json.dumps(SMALL_JOB))
        job["spec"]["accelerator"] = {"devicesPerNode": per_node}
        job["spec"]["batch"]["globalBatchSize"] = prompts
        placement = {"mode": "separated", "updateDevices": 1, "rolloutDevices": together}
        job["spec"]["rollout"] = {"parallelism": {"tensor": together}}
        job["spec"]["placement"] = placement
        self.job = resolve(read_job(job))
        self.pool = DevicePool(
            workers=workers(per_node),
            per_node=per_node,
            kind=kind,
            arguments=((plan,), 1),
        )
        self.pool.reserve((1 + together) // per_node)
        self.log = EventLog(folder / "events.jsonl")
        self.requests = ScaleRequests(self.job)
        self.actors = Actors(
            members=self._members(),
            pool=self.pool,
            feeder=None,  # type: ignore[arg-type]  # no step asks it
            rewards=[],
            warehouses=[],
            controllers={},
            dock=DockAddress(token="", warehouses=(), controllers={}),
            begin=lambda kind, left=(): None,  # type: ignore[arg-type, return-value]
        )
        self.actors.meet()
        self.synced: list[list[int]] = []
        self.elastic = RolloutScaler(
            job=self.job,
            actors=self.actors,
            requests=self.requests,
            log=self.log,
            sync=lambda: self.synced.append(self.group()),
            joined=lambda: None,
            report_resize=self.log.write,
        )
        self.steps = 0

    def _members(self) -> list[Member]:
        roles = device_roles(self.job)
        workers = [self.pool.hire(role) for role in roles]
        places = answers("device", prepare(workers, roles))
        return [
            Member(role=role, worker=worker, place=place)
            for role, worker, place in zip(roles, workers, places, strict=True)
        ]

    def group(self) -> list[int]:
        """Devices that are in one group for weights, by their place in it; all must agree."""
        found = {
            member.role.rank: member.worker.synced().result(60) for member in self.actors.members
        }
        assert len({group[0] for group in found.values()}) == 1
        assert {group[2] for group in found.values()} == {len(found)}
        return sorted(found, key=lambda rank: found[rank][1])

    def step(self) -> None:
        """A step, and what lies between it and the next one."""
        self.elastic.poll()
        self.steps += 1
        self.elastic.apply(self.steps)

    def step_until(self, done: Callable[[], bool]) -> None:
        """Steps until it is so."""
        deadline = time.monotonic() + 300
        while not done():
            assert time.monotonic() < deadline, self.requests.report()
            self.step()
            time.sleep(0.05)

    def end(self) -> None:
        """Whoever is there or on the way goes."""
        self.log.close()
        roles = [(m.worker, m.role) for m in self.actors.members]
        for joiner in self.elastic.joiners.starting.values():
            roles += zip(joiner.workers, joiner.roles, strict=True)
        for worker, role in roles:
            self.pool.dismiss(worker, role, staying=set())

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [plain(event) for event in read_events(self.log.path) if event.kind == kind]
