"""Run workers as actors of Ray, which places, supervises and restarts them.

Created by `launch` within Ray's session. Every actor requests 0 CPUs, so that a small machine never waits
for a reservation that cannot be met. Devices are reserved: each node has a placement group with a bundle
for each of its devices.
"""

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rljob_runtime.dock.ports import ReservedPorts
from rljob_runtime.errors import RljobError, WorkerError, WorkerFailed
from rljob_runtime.processes.warehouse_homes import on_node, warehouse_homes
from rljob_runtime.processes.workers import Call, Home, Worker

PLACEMENT_DEADLINE_SECONDS = 120.0
MOVE_SECONDS = 5.0
"""How long a free node may take to be reserved."""
NOTICE_SECONDS = 5.0
"""How long Ray may take to notice a death. If none died, living but busy workers use it up."""
SAME_BLOW_SECONDS = 0.3
"""How long to wait after one death for others with the same cause."""


Reservation: TypeAlias = PlacementGroup


def reserve(bundles: list[dict[str, float]]) -> Reservation:
    """Begin to reserve bundles of resources on one node. The reservation ends with this process, or by
    `give_back`."""
    return placement_group(bundles, strategy="STRICT_PACK")


def give_back(group: Reservation) -> None:
    """End a reservation of resources."""
    remove_placement_group(group)


def start_actor(
    kind: type, options: dict[str, Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Begin to start an actor of this class and return its handle. It ends with this process, or by
    `end_actor`."""
    return ray.remote(kind).options(**options).remote(*arguments, **named)


def end_actor(actor: Any) -> None:
    """Kill the actor immediately, whatever it does."""
    ray.kill(actor)


class ActorOwner(Protocol):
    """The process that owns actors and reservations: they end with it."""

    def start(self, *described: Any) -> Any:
        """Start an actor; see `start_actor`."""

    def reserve(self, bundles: list[dict[str, float]]) -> Reservation:
        """Reserve bundles of resources; see the function `reserve`."""

    def hold_ports(self, count: int) -> list[int]:
        """Hold free ports; see `Workers.hold_ports`."""


class ThisProcess:
    """Ownership of actors and reservations by this process."""

    start = staticmethod(start_actor)
    reserve = staticmethod(reserve)

    def __init__(self) -> None:
        self._ports: list[ReservedPorts] = []

    def hold_ports(self, count: int) -> list[int]:
        self._ports.append(ReservedPorts(count))
        return [*self._ports[-1]]


class RayWorker:
    """A worker that is a Ray actor. group: the reservation that it was started in."""

    def __init__(self, actor: Any, group: Reservation | None = None) -> None:
        self.actor, self.group = actor, group

    def __getattr__(self, name: str) -> Callable[..., Call]:
        if name.startswith("__"):  # what pickle looks for
            raise AttributeError(name)
        method = getattr(self.actor, name)

        def call(*arguments: Any) -> Call:
            passed = [each.reference if isinstance(each, _RayCall) else each for each in arguments]
            return _RayCall(method.remote(*passed))

        return call


@dataclass(slots=True, kw_only=True)
class RayWorkers:
    """The actors of this session. per_node: devices of a node. resource: Ray's name of a device.
    groups: the reservation of each node. retired_groups: reservations that are not used for new
    workers. owner: the process that owns all of them; another driver that takes over has its own."""

    per_node: int
    resource: str
    may_move: bool = True
    groups: dict[int, Reservation] = field(default_factory=dict)
    retired_groups: list[Reservation] = field(default_factory=list)
    owner: ActorOwner = field(default_factory=ThisProcess)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.per_node, self.resource, self.may_move, self.groups, self.retired_groups

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.per_node, self.resource, self.may_move, self.groups, self.retired_groups = state
        self.owner = ThisProcess()

    def retain_nodes(self, nodes: Collection[int]) -> list[Reservation]:
        """Return all remaining reservations if only these nodes are used; forget those of other nodes."""
        self.groups = {node: group for node, group in self.groups.items() if node in nodes}
        return [*self.groups.values(), *self.retired_groups]

    @property
    def host(self) -> str:
        return str(ray.util.get_node_ip_address())

    def reserve(self, nodes: int) -> None:
        for node in range(nodes):
            self.ask_for(node)
        deadline = time.monotonic() + PLACEMENT_DEADLINE_SECONDS
        groups = self.groups.values()
        missing = [group for group in groups if not group.wait(max(1, deadline - time.monotonic()))]
        if missing:
            raise WorkerError(
                f"{len(missing)} of {nodes} nodes with {self.per_node} free devices were not found "
                f"within {PLACEMENT_DEADLINE_SECONDS:.0f} s; the Ray cluster has "
                f"{ray.available_resources().get(self.resource, 0):.0f} free of "
                f"{ray.cluster_resources().get(self.resource, 0):.0f} devices ({self.resource})"
            )

    def ask_for(self, node: int) -> None:
        bundles: list[dict[str, float]] = [{self.resource: 1}] * self.per_node
        self.groups[node] = self.owner.reserve(bundles)

    def renew(self, node: int) -> None:
        """Replace the reservation of a lost node.

        Ray's server would try to place the old one again without a pause while no node is free, and use
        all available processor time. It tries a new one with pauses (ray-project/ray, pull request
        65970).
        """
        if _lost(self.groups[node]):
            self.release(node)
            self.ask_for(node)
        for group in [group for group in self.retired_groups if _lost(group)]:
            self.retired_groups.remove(group)
            give_back(group)

    def has_place(self, node: int) -> bool:
        return _state(self.groups[node]) == "CREATED"

    def move(self, node: int) -> bool:
        before = self.groups[node]
        self.ask_for(node)
        if self.groups[node].wait(MOVE_SECONDS):
            self.retired_groups.append(before)
            return True
        self.release(node)
        self.groups[node] = before
        return False

    def release(self, node: int) -> None:
        give_back(self.groups.pop(node))

    def on_device(self, node: int, number: int) -> Home:
        return {"resources": {self.resource: 1}, **self._in_bundle(node, number)}

    def on_reserved_node(self, node: int | None) -> Home:
        return {} if node is None else self._in_bundle(node, 0)

    def near(self, node: int) -> Home:
        table = placement_group_table(self.groups[node])
        return on_node(table["bundles_to_node_id"][0])

    def warehouse_homes(self, warehouses: int, *, spread: int | None) -> list[Home]:
        return warehouse_homes(warehouses, spread=spread)

    def hold_ports(self, count: int) -> list[int]:
        return self.owner.hold_ports(count)

    def start(
        self,
        kind: type,
        *arguments: Any,
        home: Home,
        name: str | None = None,
        restarts: bool = False,
        **named: Any,
    ) -> Worker:
        options: dict[str, Any] = {"num_cpus": 0, "num_gpus": 0, **home}
        options |= {"name": name} if name else {}
        options |= {"max_restarts": -1} if restarts else {}
        group = getattr(home.get("scheduling_strategy"), "placement_group", None)
        return RayWorker(self.owner.start(kind, options, arguments, named), group)

    def end(self, worker: Any) -> None:
        end_actor(worker.actor)

    def dead(self, workers: Sequence[Any]) -> list[bool]:
        calls = [worker.actor.__ray_ready__.remote() for worker in workers]
        died, pending, deadline = set[Any](), calls, time.monotonic() + NOTICE_SECONDS
        while pending and time.monotonic() < deadline:
            ended, pending = ray.wait(pending, num_returns=len(pending), timeout=SAME_BLOW_SECONDS)
            newly_died = {call for call in ended if _has_died(call)}
            if died and not newly_died:
                break
            died |= newly_died
        return [call in died for call in calls]

    def has_reservation(self, worker: Any) -> bool:
        return worker.group is None or _state(worker.group) != "REMOVED"

    def _in_bundle(self, node: int, number: int) -> Home:
        group = self.groups[node]
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        return {"scheduling_strategy": strategy}


def _state(group: Reservation) -> str:
    return str(placement_group_table(group)["state"])


def _lost(group: Reservation) -> bool:
    """Return whether the reservation has lost its node, or was removed by a driver that died before it
    could report this."""
    return _state(group) in ("RESCHEDULING", "REMOVED")


class _RayCall(Future[Any]):
    """The future of a Ray reference. It holds the reference, since Ray drops results without one."""

    def __init__(self, reference: Any) -> None:
        super().__init__()
        self.reference = reference
        reference.future().add_done_callback(self._ended)

    def _ended(self, ray_future: Future[Any]) -> None:
        error = ray_future.exception(timeout=0)
        if error is None:
            self.set_result(ray_future.result(timeout=0))
        else:
            self.set_exception(_unwrapped(error))


def _unwrapped(error: BaseException) -> BaseException:
    """Return what a worker raised, without Ray's wrapping. rljob's own errors stay unchanged."""
    cause = getattr(error, "cause", None)
    inner = cause if isinstance(cause, Exception) else error
    if isinstance(inner, RljobError):
        return inner
    return WorkerFailed(inner) if isinstance(inner, Exception) else error


def _has_died(call: Any) -> bool:
    try:
        ray.get(call, timeout=NOTICE_SECONDS)
    except ray.exceptions.RayActorError:
        return True
    except ray.exceptions.GetTimeoutError:
        return False
    return False
