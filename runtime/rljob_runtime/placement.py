"""From topology to processes: which actors a run has, where they sit, and their addresses.

Called by `launch`; the driver then talks to the `Cast` alone. Every actor asks for 0 CPUs, so that a
small machine never waits for a reservation that cannot be met; devices are what is reserved. On a
cluster, warehouses go to the pods that are theirs, one each, and a controller goes to the node of its
state's first worker. With separated placement nothing else sits where devices may leave.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ray.util.placement_group import PlacementGroup

from rljob_api.base import parse_quantity
from rljob_api.elastic import DevicePlace
from rljob_api.ray_resources import device_resource
from rljob_api.rljob import RLJob
from rljob_api.topology import lasting_nodes, num_nodes
from rljob_runtime.actors.device import Seat
from rljob_runtime.actors.dock import ControllerActor, WarehouseActor
from rljob_runtime.actors.feeder import PromptFeeder
from rljob_runtime.actors.reward import RewardWorker
from rljob_runtime.actors.whereabouts import UNKNOWN, LiveAddress, Warehouses, warehouse_name
from rljob_runtime.calls import MEET_SECONDS, answers
from rljob_runtime.device_pool import DevicePool, beside
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.ports import HeldPorts
from rljob_runtime.flow import INFERENCE_STATES, TRAINING_STATES, state_graph
from rljob_runtime.folders import Folder
from rljob_runtime.seats import make_seats, prepare
from rljob_runtime.warehouse_homes import warehouse_homes

MEETING_SECONDS = 3 * MEET_SECONDS
"""For a meeting of processes that may still be waiting for one that failed."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A device of the run: what it does, its process, and where that is."""

    seat: Seat
    worker: Any
    place: DevicePlace


@dataclass(slots=True, kw_only=True)
class Cast:
    """The actors of a run. members: the devices; those that generate may come and go.

    ports: the dock's, kept for servers that start again.
    """

    members: list[Member]
    pool: DevicePool
    feeder: Any
    rewards: list[Any]
    warehouses: list[Any]
    controllers: dict[str, Any]
    dock: DockAddress
    ports: HeldPorts

    @property
    def devices(self) -> list[Any]:
        """All device workers."""
        return [member.worker for member in self.members]

    def updating(self) -> list[Any]:
        """Device workers with the update state, by update rank."""
        return [member.worker for member in self.update_members()]

    def update_members(self) -> list[Member]:
        """Devices with the update state, by update rank."""
        members = [m for m in self.members if m.seat.update_rank is not None]
        return sorted(members, key=lambda member: member.seat.rank)

    def rollout_members(self) -> list[Member]:
        """Devices with the generate state, in order; the last ones leave first."""
        members = [member for member in self.members if member.seat.generates]
        return sorted(members, key=lambda member: member.seat.rank)

    def generating(self) -> list[Any]:
        """Device workers with the generate state, in order."""
        return [member.worker for member in self.rollout_members()]

    def meet(self) -> None:
        """Let the source of weights and the devices that take them form a group of now.

        Colocated, a device is its own source. Raises WorkerError, RayError.
        """
        takers = [m.worker for m in self.rollout_members() if m.seat.update_rank is None]
        if not takers:
            return
        source = self.updating()[0]
        (address,) = answers("weight sync", [source.open_sync.remote()], seconds=MEETING_SECONDS)
        group = [source, *takers]
        calls = [w.join_sync.remote(address, rank, len(group)) for rank, w in enumerate(group)]
        answers("weight sync", calls, seconds=MEETING_SECONDS)


def place(
    job: RLJob,
    *,
    models: dict[str, Folder],
    base_dir: Path,
    dock_directory: Path,
    run: DockAddress,
    num_threads: int,
) -> Cast:
    """Start every actor and wait until each answers. Raises WorkerError naming who does not.

    models: directories by name. dock_directory: where warehouses put their sockets, on whatever machine
    they are. run: the run's token and switchboard; the dock's servers are not there yet.
    """
    graph = state_graph(job.spec)
    pool = DevicePool(
        per_node=job.spec.accelerator.devices_per_node,
        resource=device_resource(job.spec.accelerator),
    )
    pool.reserve(num_nodes(job.spec.placement, job.spec.accelerator))
    seats = make_seats(job)
    nodes = controller_nodes(seats)
    lasting = lasting_groups(job, pool)
    home = lasting[0] or pool.groups[0]  # of whoever has no device: where the run's volumes are
    near = {state: pool.groups[nodes[state]] if state in nodes else home for state in graph.names}
    assert job.spec.dock.warehouses is not None, "the resolved spec names the warehouses"
    ports = HeldPorts(job.spec.dock.warehouses + len(graph.names))
    warehouses, controllers, dock = _start_dock(
        job, graph, run, near, lasting, dock_directory, [*ports]
    )
    job_json = job.model_dump_json(by_alias=True)
    address = LiveAddress(dock.to_json(), Warehouses(list(dock.warehouses)))
    shared = (job_json, models["policy"], base_dir, address)
    pool.arguments = ((job_json, models, address), num_threads)
    devices = [pool.hire(seat) for seat in seats]
    options = {"num_cpus": 0, **beside(home)}
    feeder = PromptFeeder.options(**options).remote(*shared)  # type: ignore[attr-defined]
    rewards = []
    if job.spec.rewards:
        rewards = [RewardWorker.options(**options).remote(*shared, 0)]  # type: ignore[attr-defined]
    places = answers("device worker", prepare(devices, seats))
    cast = Cast(
        members=[
            Member(seat=seat, worker=worker, place=where)
            for seat, worker, where in zip(seats, devices, places, strict=True)
        ],
        pool=pool,
        feeder=feeder,
        rewards=rewards,
        warehouses=warehouses,
        controllers=controllers,
        dock=dock,
        ports=ports,
    )
    cast.meet()
    return cast


def controller_nodes(seats: list[Seat]) -> dict[str, int]:
    """The node of each state's first worker; states that are not named have no device."""
    updating = next(seat.node for seat in seats if seat.update_rank == 0)
    generating = next(seat.node for seat in seats if seat.generates)
    return {"generate": generating} | dict.fromkeys(
        (*INFERENCE_STATES, "compare", *TRAINING_STATES), updating
    )


def lasting_groups(job: RLJob, pool: DevicePool) -> list[PlacementGroup | None]:
    """Nodes for what must outlive any rollout device; None leaves the choice to Ray."""
    if job.spec.placement.mode == "colocated":
        return [None]
    return [pool.groups[i] for i in range(lasting_nodes(job.spec.placement, job.spec.accelerator))]


def _start_dock(
    job: RLJob,
    graph: StateGraph,
    run: DockAddress,
    near: dict[str, PlacementGroup],
    lasting: list[PlacementGroup | None],
    directory: Path,
    ports: list[int],
) -> tuple[list[Any], dict[str, Any], DockAddress]:
    """Warehouses first, then one controller a state, told where the warehouses are."""
    settings = job.spec.dock
    assert settings.warehouses is not None, "the resolved spec names the warehouses"
    options: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1}
    sockets = None if settings.shared_memory == "none" else str(directory)
    twice = settings.replicas == 2
    homes = warehouse_homes(settings.warehouses, apart=twice)

    def home(index: int) -> dict[str, Any]:
        return homes[index] if homes else beside(lasting[index % len(lasting)])

    warehouses = [
        WarehouseActor.options(  # type: ignore[attr-defined]
            name=warehouse_name(index), **options, **home(index)
        ).remote(
            index=index,
            graph=graph.to_json(),
            capacity_bytes=parse_quantity(settings.capacity),
            shared_directory=sockets,
            pin_seconds=settings.lease_seconds,
            warehouses=Warehouses([UNKNOWN] * settings.warehouses) if twice else None,
            run=run.to_json(),
            port=ports[index],
        )
        for index in range(settings.warehouses)
    ]
    addresses = answers("warehouse", [actor.address.remote() for actor in warehouses])
    controllers = {
        state: ControllerActor.options(**options, **beside(near[state])).remote(  # type: ignore[attr-defined]
            state=state,
            graph=graph.to_json(),
            warehouses=Warehouses(addresses),
            lease_seconds=settings.lease_seconds,
            shared_directory=sockets,
            run=run.to_json(),
            port=port,
        )
        for state, port in zip(graph.names, ports[settings.warehouses :], strict=True)
    }
    places = answers("controller", [actor.address.remote() for actor in controllers.values()])
    dock = replace(
        run,
        warehouses=tuple(addresses),
        controllers=dict(zip(controllers, places, strict=True)),
        shared_memory=settings.shared_memory,
    )
    return warehouses, controllers, dock
