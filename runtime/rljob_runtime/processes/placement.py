"""Start the actors of a run from its topology: which actors there are, where they run, and their
addresses.

Called by `launch`; the driver then uses only the `Actors`. On a cluster, warehouses go to the pods
reserved for them, one each, and a controller goes to the node of its state's first worker. With separated
placement, no other actors run where devices may leave.
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
    ServerAddresses,
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
"""Deadline for a meeting of processes that may still be waiting for one that failed."""


@dataclass(slots=True, kw_only=True)
class Member:
    """A device of the run: its role, its process, and its location."""

    role: DeviceRole
    worker: Worker
    place: DevicePlace


@dataclass(slots=True, kw_only=True)
class Actors:
    """The workers of a run. members: the devices; those that generate may join and leave. left_out:
    training devices that wait for a place; they keep their nodes. begin: starts a feeder or a reward
    worker, on a node other than the given ones where possible."""

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
        """Return the workers of all devices."""
        return [member.worker for member in self.members]

    @property
    def others(self) -> dict[str, Worker]:
        """Return the workers without a device that a batch needs, by name: the feeder and the reward
        workers."""
        rewards = {f"reward-{number}": worker for number, worker in enumerate(self.rewards)}
        return {"feeder": self.feeder} | rewards

    def updating(self) -> list[Worker]:
        """Return the device workers with the update state, by update rank."""
        return [member.worker for member in self.update_members()]

    def update_members(self) -> list[Member]:
        """Return the devices with the update state, by update rank."""
        members = [m for m in self.members if m.role.update_rank is not None]
        return sorted(members, key=lambda member: member.role.rank)

    def rollout_members(self) -> list[Member]:
        """Return the devices with the generate state, in order; the last ones leave first."""
        members = [member for member in self.members if member.role.generates]
        return sorted(members, key=lambda member: member.role.rank)

    def generating(self) -> list[Worker]:
        """Return the device workers with the generate state, in order."""
        return [member.worker for member in self.rollout_members()]

    def meet(self) -> None:
        """Form a new group of the devices that send weights and those that receive them.

        Colocated, a device is its own source. All devices leave the previous group first: one that still
        waits there, for a device that has died, comes late to the next. Raises RljobError.
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


def place_workers(
    job: ResolvedJob,
    workers: Workers,
    *,
    models: dict[str, Folder],
    logprob_dir: Path | None,
    base_dir: Path,
    dock_directory: Path,
    run: DockAddress,
    num_threads: int,
) -> Actors:
    """Start every worker and wait until each answers. Raises WorkerError naming those that do not.

    workers: starts the processes. models: directories by name. logprob_dir: folder of the reference's
    log-probs, or None. dock_directory: for the warehouses' sockets, on each of their machines. run: the
    run's token and switchboard; it has no dock servers yet.
    """
    graph = state_graph(job.spec)
    pool = DevicePool(workers=workers, per_node=job.spec.accelerator.devices_per_node)
    pool.reserve(num_nodes(job.spec.placement, job.spec.accelerator))
    roles = device_roles(job)
    nodes = controller_nodes(roles)
    lasting = lasting_nodes_of(job)
    home = lasting[0] or 0  # for workers without a device: the node with the run's volumes
    near = {state: nodes.get(state, home) for state in graph.names}
    ports = workers.hold_ports(job.spec.dock.warehouses + len(graph.names))
    warehouses, controllers, dock = _start_dock(
        job, workers, graph, run, near, lasting, dock_directory, ports
    )
    job_json = job.model_dump_json(by_alias=True)
    address = LiveAddress.of(dock, may_move=workers.may_move)
    shared = (job_json, models["policy"], base_dir, address)
    pool.arguments = ((job_json, models, address, logprob_dir, base_dir), num_threads)
    devices = [pool.hire(role) for role in roles]
    begin = partial(_begin, workers, shared, [node or 0 for node in lasting])
    feeder = begin(PromptFeeder)
    rewards = [begin(RewardWorker)] if job.spec.rewards else []
    places = answers("device worker", prepare(devices, roles))
    actors = Actors(
        members=[
            Member(role=role, worker=worker, place=place)
            for role, worker, place in zip(roles, devices, places, strict=True)
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
    """Start a process without a device, of which a run has one, on the first of these nodes that was
    not left."""
    number = () if kind is PromptFeeder else (0,)
    node = next((node for node in nodes if node not in left), nodes[0])
    return workers.start(kind, *shared, *number, home=workers.on_reserved_node(node))


def controller_nodes(roles: list[DeviceRole]) -> dict[str, int]:
    """Return the node of each state's first worker; states that are missing have no device."""
    updating = next(role.node for role in roles if role.update_rank == 0)
    generating = next(role.node for role in roles if role.generates)
    return {"generate": generating} | dict.fromkeys(
        (*INFERENCE_STATES, "compare", *TRAINING_STATES), updating
    )


def lasting_nodes_of(job: ResolvedJob) -> list[int | None]:
    """Return the nodes for workers that must outlive any rollout device; None: any node."""
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
    """Start the warehouses, then one controller per state with the addresses of the warehouses."""
    settings = job.spec.dock
    sockets = None if settings.shared_memory == "none" else str(directory)
    twice, may_leave = settings.replicas == 2, fewest_replicas(job.spec) is not None
    spread = pods(job.spec).warehouse if twice or may_leave else None
    homes = workers.warehouse_homes(settings.warehouses, spread=spread)
    unasked = [UNKNOWN if workers.may_move else (workers.host, port) for port in ports]
    names = [warehouse_name(index) for index in range(settings.warehouses)]
    others = ServerAddresses(dict(zip(names, unasked, strict=False)), workers.may_move)

    def near_to(node: int | None) -> Home:
        """Return a home outside of any reservation, since servers outlive the reservation of a lost
        node."""
        return workers.on_reserved_node(None) if node is None else workers.near(node)

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
            warehouses=ServerAddresses(dict(zip(names, addresses, strict=True)), workers.may_move),
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
