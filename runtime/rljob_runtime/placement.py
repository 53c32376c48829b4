"""From topology to processes: which actors a run has, where they sit, and their addresses.

Called by `launch`; the driver then talks to the `Cast` alone. Every actor asks for 0 CPUs, so that a
small machine never waits for a reservation that cannot be met; devices are what is reserved. On a
cluster, warehouses go to the pods that are theirs, one each, and a controller goes to the node of its
state's first worker.
"""

import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rljob_api.base import parse_quantity
from rljob_api.rljob import RLJob
from rljob_runtime.actors.device import DeviceWorker, Seat
from rljob_runtime.actors.dock import ControllerActor, WarehouseActor
from rljob_runtime.actors.feeder import PromptFeeder
from rljob_runtime.actors.reward import RewardWorker
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.errors import WorkerError
from rljob_runtime.flow import state_graph

DEVICE_RESOURCE = "rljob_device"
WAREHOUSE_RESOURCE = "rljob_warehouse"
"""What a warehouse's pod offers; without such pods, warehouses go where Ray puts them."""
PLACEMENT_DEADLINE_SECONDS = 120.0
START_DEADLINE_SECONDS = 600.0


@dataclass(slots=True, kw_only=True)
class Cast:
    """The actors of a run. seats[i] says what devices[i] does."""

    devices: list[Any]
    seats: list[Seat]
    feeder: Any
    rewards: list[Any]
    warehouses: list[Any]
    controllers: dict[str, Any]
    dock: DockAddress

    def updating(self) -> list[Any]:
        """Device workers with the update state, by update rank."""
        return self._with("update_rank")

    def generating(self) -> list[Any]:
        """Device workers with the generate state, by rollout rank."""
        return self._with("rollout_rank")

    def _with(self, rank: str) -> list[Any]:
        ranked = [
            (getattr(seat, rank), worker)
            for seat, worker in zip(self.seats, self.devices, strict=True)
            if getattr(seat, rank) is not None
        ]
        return [worker for _, worker in sorted(ranked, key=lambda pair: pair[0])]


def make_seats(job: RLJob) -> list[Seat]:
    """One seat a device. Colocated: every device updates and generates; separated: one role each."""
    spec = job.spec
    total = spec.accelerator.nodes * spec.accelerator.devices_per_node
    colocated = spec.placement.mode == "colocated"
    updating = total if colocated else spec.placement.update_devices
    assert updating is not None, "a separated placement without updateDevices passed the rules"
    return [
        Seat(
            rank=rank,
            world_size=total,
            update_rank=rank if rank < updating else None,
            num_updating=updating,
            rollout_rank=rank if colocated else (rank - updating if rank >= updating else None),
            num_generating=total if colocated else total - updating,
            node=rank // spec.accelerator.devices_per_node,
        )
        for rank in range(total)
    ]


def place(
    job: RLJob,
    *,
    model: Path,
    base_dir: Path,
    dock_directory: Path,
    token: str,
    num_threads: int,
) -> Cast:
    """Start every actor and wait until each answers. Raises WorkerError naming who does not.

    dock_directory: where warehouses put their sockets, on whatever machine they are.
    """
    graph = state_graph(job.spec)
    groups = _reserve(job)
    seats = make_seats(job)
    beside = {state: groups[node] for state, node in controller_nodes(seats).items()}
    warehouses, controllers, dock = _start_dock(job, graph, token, beside, dock_directory)
    job_json = job.model_dump_json(by_alias=True)
    shared = (job_json, model, base_dir, dock.to_json())
    devices = [
        DeviceWorker.options(  # type: ignore[attr-defined]
            num_cpus=0,
            resources={DEVICE_RESOURCE: 1},
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                groups[seat.node],
                placement_group_bundle_index=seat.rank % job.spec.accelerator.devices_per_node,
            ),
        ).remote(job_json, model, dock.to_json(), seat, num_threads)
        for seat in seats
    ]
    feeder = PromptFeeder.options(num_cpus=0).remote(*shared)  # type: ignore[attr-defined]
    rewards = [RewardWorker.options(num_cpus=0).remote(*shared, 0)]  # type: ignore[attr-defined]
    _prepare(devices)
    return Cast(
        devices=devices,
        seats=seats,
        feeder=feeder,
        rewards=rewards,
        warehouses=warehouses,
        controllers=controllers,
        dock=dock,
    )


def _reserve(job: RLJob) -> list[PlacementGroup]:
    """One placement group a node, one bundle a device."""
    per_node = job.spec.accelerator.devices_per_node
    groups = [
        placement_group([{DEVICE_RESOURCE: 1}] * per_node, strategy="STRICT_PACK")
        for _ in range(job.spec.accelerator.nodes)
    ]
    deadline = time.monotonic() + PLACEMENT_DEADLINE_SECONDS
    missing = [group for group in groups if not group.wait(max(1, deadline - time.monotonic()))]
    if missing:
        raise WorkerError(
            f"{len(missing)} of {len(groups)} nodes with {per_node} free devices were not found "
            f"within {PLACEMENT_DEADLINE_SECONDS:.0f} s; the Ray cluster has "
            f"{ray.available_resources().get(DEVICE_RESOURCE, 0):.0f} free of "
            f"{ray.cluster_resources().get(DEVICE_RESOURCE, 0):.0f} devices ({DEVICE_RESOURCE})"
        )
    return groups


def controller_nodes(seats: list[Seat]) -> dict[str, int]:
    """The node of each state's first worker; states that are not named have no device."""
    updating = next(seat.node for seat in seats if seat.update_rank == 0)
    generating = next(seat.node for seat in seats if seat.rollout_rank == 0)
    return {"generate": generating, "reference": updating, "update": updating}


def _start_dock(
    job: RLJob,
    graph: StateGraph,
    token: str,
    beside: dict[str, PlacementGroup],
    directory: Path,
) -> tuple[list[Any], dict[str, Any], DockAddress]:
    """Warehouses first, then one controller a state, told where the warehouses are."""
    settings = job.spec.dock
    assert settings.warehouses is not None, "the resolved spec names the warehouses"
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1}
    own_pods = WAREHOUSE_RESOURCE in ray.cluster_resources()
    own = {"resources": {WAREHOUSE_RESOURCE: 1}} if own_pods else {}
    warehouses = [
        WarehouseActor.options(**options, **own).remote(  # type: ignore[attr-defined]
            index=index,
            graph=graph.to_json(),
            capacity_bytes=parse_quantity(settings.capacity),
            shared_directory=None if settings.shared_memory == "none" else str(directory),
            pin_seconds=settings.lease_seconds,
            token=token,
            port=free_port(),
        )
        for index in range(settings.warehouses)
    ]
    addresses = _answers("warehouse", [actor.address.remote() for actor in warehouses])
    controllers = {
        state: ControllerActor.options(**options, **_beside(beside.get(state))).remote(  # type: ignore[attr-defined]
            state=state,
            graph=graph.to_json(),
            warehouses=addresses,
            lease_seconds=settings.lease_seconds,
            token=token,
            port=free_port(),
        )
        for state in graph.names
    }
    places = _answers("controller", [actor.address.remote() for actor in controllers.values()])
    dock = DockAddress(
        token=token,
        warehouses=tuple(addresses),
        controllers=dict(zip(controllers, places, strict=True)),
        shared_memory=settings.shared_memory,
    )
    return warehouses, controllers, dock


def _beside(group: PlacementGroup | None) -> dict[str, Any]:
    """Options of an actor that goes to the node of a reservation without using any of it."""
    if group is None:
        return {}
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    return {"scheduling_strategy": strategy}


def _prepare(devices: list[Any]) -> None:
    """Let the devices meet and load their models."""
    (host,) = _answers("device worker", [devices[0].address.remote()])
    meeting_point = f"tcp://{host}:{free_port()}"
    _answers("device worker", [worker.prepare.remote(meeting_point) for worker in devices])


def _answers(what: str, calls: list[Any]) -> list[Any]:
    """The results of calls to actors that are starting. Raises WorkerError at the deadline."""
    _, missing = ray.wait(calls, num_returns=len(calls), timeout=START_DEADLINE_SECONDS)
    if missing:
        raise WorkerError(
            f"{len(missing)} of {len(calls)} processes ({what}) did not start within "
            f"{START_DEADLINE_SECONDS:.0f} s"
        )
    return list(ray.get(calls))


def free_port() -> int:
    """A port that nothing listens on now; a restarted dock server takes the same one again."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
