"""From topology to processes: which actors a run has, where they sit, and their addresses.

Called by `launch`; the driver then talks to the `Actors` alone. On a cluster, warehouses go to the pods that
are theirs, one each, and a controller goes to the node of its state's first worker. With separated placement
nothing else sits where devices may leave.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rljob_api.spec.section import parse_quantity
from rljob_api.topology.devices import lasting_nodes, num_nodes, pods
from rljob_api.topology.elastic import DevicePlace
from rljob_api.topology.fewer_replicas import fewest_replicas
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.processes.actors.addresses import (
    UNKNOWN,
    LiveAddress,
    Servers,
    controller_name,
    warehouse_name,
)
from rljob_runtime.processes.actors.dock_worker import ControllerActor, WarehouseActor
from rljob_runtime.processes.actors.feeder import PromptFeeder
from rljob_runtime.processes.actors.reward_worker import RewardWorker
from rljob_runtime.processes.calls import answers
from rljob_runtime.processes.device_pool import DevicePool
from rljob_runtime.processes.device_roles import device_roles, prepare
from rljob_runtime.processes.workers import Home, Worker, Workers
from rljob_runtime.record.folders import Folder
from rljob_runtime.samples.flow import INFERENCE_STATES, TRAINING_STATES, state_graph
from rljob_runtime.worker.device_role import DeviceRole

MEETING_SECONDS = 90.0
"""For a meeting of processes that may still be waiting for one that failed."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A device of the run: what it does, its process, and where that is."""

    role: DeviceRole
    worker: Worker
    place: DevicePlace


@dataclass(slots=True, kw_only=True)
class Actors:
    """The workers of a run. members: the devices; those that generate may come and go. left_out: devices that
    train, when they have a place again; their nodes are theirs. begin: starts a feeder or a reward worker,
    beside devices of other nodes than these where there are any.
    """

    members: list[Member]
    pool: DevicePool
    feeder: Worker
    rewards: list[Worker]
    warehouses: list[Worker]
    controllers: dict[str, Worker]
    dock: DockAddress
    begin: Callable[..., Worker]
    left_out: list[Member] = field(default_factory=list)

    @property
    def devices(self) -> list[Worker]:
        """All device workers."""
        return [member.worker for member in self.members]

    @property
    def others(self) -> dict[str, Worker]:
        """The workers without a device that a batch needs, by name: the feeder and the reward workers."""
        rewards = {f"reward-{number}": worker for number, worker in enumerate(self.rewards)}
        return {"feeder": self.feeder} | rewards

    def updating(self) -> list[Worker]:
        """Device workers with the update state, by update rank."""
        return [member.worker for member in self.update_members()]

    def update_members(self) -> list[Member]:
        """Devices with the update state, by update rank."""
        members = [m for m in self.members if m.role.update_rank is not None]
        return sorted(members, key=lambda member: member.role.rank)

    def rollout_members(self) -> list[Member]:
        """Devices with the generate state, in order; the last ones leave first."""
        members = [member for member in self.members if member.role.generates]
        return sorted(members, key=lambda member: member.role.rank)

    def generating(self) -> list[Worker]:
        """Device workers with the generate state, in order."""
        return [member.worker for member in self.rollout_members()]

    def meet(self) -> None:
        """Let the devices that give weights and those that take them form a group of now.

        Colocated, a device is its own source. All leave the group of before first: who still waits there, for
        one that has died, comes late to the next. Raises RljobError.
        """
        takers = [m.worker for m in self.rollout_members() if m.role.update_rank is None]
        if not takers:
            return
        givers = self.updating()
        leaving = [worker.leave_sync() for worker in (*givers, *takers)]
        answers("weight sync", leaving, seconds=MEETING_SECONDS)
        opened = [givers[0].open_sync()]
        ((address, planned),) = answers("weight sync", opened, seconds=MEETING_SECONDS)
        group = [*(givers if planned else givers[:1]), *takers]
        calls = [w.join_sync(address, rank, len(group)) for rank, w in enumerate(group)]
        answers("weight sync", calls, seconds=MEETING_SECONDS)


def place(
    job: ResolvedJob,
    workers: Workers,
    *,
    models: dict[str, Folder],
    kept: Path | None,
    base_dir: Path,
    dock_directory: Path,
    run: DockAddress,
    num_threads: int,
) -> Actors:
    """Start every worker and wait until each answers. Raises WorkerError naming who does not.

    workers: where. models: directories by name. kept: folder of the reference's log-probs, None
    without. dock_directory: where warehouses put their sockets, on whatever machine they are. run: the
    run's token and switchboard; the dock's servers are not there yet.
    """
    graph = state_graph(job.spec)
    pool = DevicePool(workers=workers, per_node=job.spec.accelerator.devices_per_node)
    pool.reserve(num_nodes(job.spec.placement, job.spec.accelerator))
    roles = device_roles(job)
    nodes = controller_nodes(roles)
    lasting = lasting_of(job)
    home = lasting[0] or 0  # of whoever has no device: where the run's volumes are
    near = {state: nodes.get(state, home) for state in graph.names}
    ports = workers.hold_ports(job.spec.dock.warehouses + len(graph.names))
    warehouses, controllers, dock = _start_dock(
        job, workers, graph, run, near, lasting, dock_directory, ports
    )
    job_json = job.model_dump_json(by_alias=True)
    address = LiveAddress.of(dock, may_move=workers.may_move)
    shared = (job_json, models["policy"], base_dir, address)
    pool.arguments = ((job_json, models, address, kept, base_dir), num_threads)
    devices = [pool.hire(role) for role in roles]
    begin = partial(_begin, workers, shared, [node or 0 for node in lasting])
    feeder = begin(PromptFeeder)
    rewards = [begin(RewardWorker)] if job.spec.rewards else []
    places = answers("device worker", prepare(devices, roles))
    actors = Actors(
        members=[
            Member(role=role, worker=worker, place=where)
            for role, worker, where in zip(roles, devices, places, strict=True)
        ],
        pool=pool,
        feeder=feeder,
        rewards=rewards,
        warehouses=warehouses,
        controllers=controllers,
        dock=dock,
        begin=begin,
    )
    actors.meet()
    return actors


def _begin(
    workers: Workers,
    shared: tuple[Any, ...],
    nodes: Sequence[int],
    kind: type,
    left: Collection[int] = (),
) -> Worker:
    """A process without a device, of which a run has one, on the first of these nodes that was not left."""
    number = () if kind is PromptFeeder else (0,)
    node = next((node for node in nodes if node not in left), nodes[0])
    return workers.start(kind, *shared, *number, home=workers.beside(node))


def controller_nodes(roles: list[DeviceRole]) -> dict[str, int]:
    """The node of each state's first worker; states that are not named have no device."""
    updating = next(role.node for role in roles if role.update_rank == 0)
    generating = next(role.node for role in roles if role.generates)
    return {"generate": generating} | dict.fromkeys(
        (*INFERENCE_STATES, "compare", *TRAINING_STATES), updating
    )


def lasting_of(job: ResolvedJob) -> list[int | None]:
    """Nodes for what must outlive any rollout device; None: any node."""
    if job.spec.placement.mode == "colocated":
        return [None]
    return [*range(lasting_nodes(job.spec.placement, job.spec.accelerator))]


def _start_dock(
    job: ResolvedJob,
    workers: Workers,
    graph: StateGraph,
    run: DockAddress,
    near: dict[str, int],
    lasting: list[int | None],
    directory: Path,
    ports: list[int],
) -> tuple[list[Worker], dict[str, Worker], DockAddress]:
    """Warehouses first, then one controller a state, told where the warehouses are."""
    settings = job.spec.dock
    sockets = None if settings.shared_memory == "none" else str(directory)
    twice, may_leave = settings.replicas == 2, fewest_replicas(job.spec) is not None
    spread = pods(job.spec).warehouse if twice or may_leave else None
    homes = workers.warehouse_homes(settings.warehouses, spread=spread)
    unasked = [UNKNOWN if workers.may_move else (workers.host, port) for port in ports]
    names = [warehouse_name(index) for index in range(settings.warehouses)]
    others = Servers(dict(zip(names, unasked, strict=False)), workers.may_move)

    def near_to(node: int | None) -> Home:
        """In no reservation: servers outlive the one of a lost node."""
        return workers.beside(None) if node is None else workers.near(node)

    def home(index: int) -> Home:
        return homes[index] if homes else near_to(lasting[index % len(lasting)])

    warehouses = [
        workers.start(
            WarehouseActor,
            home=home(index),
            name=names[index],
            restarts=True,
            index=index,
            graph=graph.to_json(),
            capacity_bytes=parse_quantity(settings.capacity),
            shared_directory=sockets,
            pin_seconds=settings.lease_seconds,
            warehouses=others if twice else None,
            run=run.to_json(),
            port=ports[index],
        )
        for index in range(settings.warehouses)
    ]
    addresses = answers("warehouse", [each.address() for each in warehouses])
    controllers = {
        state: workers.start(
            ControllerActor,
            home=near_to(near[state]),
            name=controller_name(state),
            restarts=True,
            state=state,
            graph=graph.to_json(),
            warehouses=Servers(dict(zip(names, addresses, strict=True)), workers.may_move),
            lease_seconds=settings.lease_seconds,
            shared_directory=sockets,
            run=run.to_json(),
            port=port,
        )
        for state, port in zip(graph.names, ports[settings.warehouses :], strict=True)
    }
    places = answers("controller", [each.address() for each in controllers.values()])
    dock = replace(
        run,
        warehouses=tuple(addresses),
        controllers=dict(zip(controllers, places, strict=True)),
        shared_memory=settings.shared_memory,
    )
    return warehouses, controllers, dock
