"""A run's workers as actors of Ray, which places them, supervises them and starts them again.

Made by `launch` within Ray's session. Every actor asks for 0 CPUs, so that a small machine never waits for a
reservation that cannot be met; devices are what is reserved: a placement group with a bundle for each
device of a node.
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
"""How long a node that is free takes to be reserved."""
NOTICE_SECONDS = 5.0
"""How long Ray is given to notice a death; workers that live but are busy use it up where nobody died."""
SAME_BLOW_SECONDS = 0.3
"""How long after one death those of the same moment are given."""


Reservation: TypeAlias = PlacementGroup


def reserve(bundles: list[dict[str, float]]) -> Reservation:
    """Begin to reserve bundles of resources of one node. It ends with this process, or `give_back`."""
    return placement_group(bundles, strategy="STRICT_PACK")


def give_back(group: Reservation) -> None:
    """End a reservation."""
    remove_placement_group(group)


def start_actor(
    kind: type, options: dict[str, Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> Any:
    """Begin to start an actor of this class; its handle. It ends with this process, or `end_actor`."""
    return ray.remote(kind).options(**options).remote(*arguments, **named)


def end_actor(actor: Any) -> None:
    """At once, whatever it does."""
    ray.kill(actor)


class Maker(Protocol):
    """Whose actors and reservations they are: they end with it."""

    def start(self, *described: Any) -> Any:
        """As `start_actor`."""

    def reserve(self, bundles: list[dict[str, float]]) -> Reservation:
        """As `reserve`."""

    def hold_ports(self, count: int) -> list[int]:
        """As `Workers` do."""


class Here:
    """This process."""

    start = staticmethod(start_actor)
    reserve = staticmethod(reserve)

    def __init__(self) -> None:
        self._ports: list[ReservedPorts] = []

    def hold_ports(self, count: int) -> list[int]:
        self._ports.append(ReservedPorts(count))
        return [*self._ports[-1]]


class RayWorker:
    """An actor. group: the reservation that it was begun in."""

    def __init__(self, actor: Any, group: Reservation | None = None) -> None:
        self.actor, self.group = actor, group

    def __getattr__(self, name: str) -> Callable[..., Call]:
        if name.startswith("__"):  # what pickle looks for
            raise AttributeError(name)
        method = getattr(self.actor, name)

        def call(*arguments: Any) -> Call:
            given = [each.reference if isinstance(each, _Call) else each for each in arguments]
            return _Call(method.remote(*given))

        return call


@dataclass(slots=True, kw_only=True)
class RayWorkers:
    """Actors of this session. per_node: devices of a node. resource: Ray's name of a device. groups: the
    reservation of each node. left: those that nothing may come back to. maker: whose all are; another driver
    that takes over has its own."""

    per_node: int
    resource: str
    may_move: bool = True
    groups: dict[int, Reservation] = field(default_factory=dict)
    left: list[Reservation] = field(default_factory=list)
    maker: Maker = field(default_factory=Here)

    def __getstate__(self) -> tuple[Any, ...]:
        return self.per_node, self.resource, self.may_move, self.groups, self.left

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.per_node, self.resource, self.may_move, self.groups, self.left = state
        self.maker = Here()

    def held(self, nodes: Collection[int]) -> list[Reservation]:
        """All reservations that stay, where no others than these nodes are used; the others are given up."""
        self.groups = {node: group for node, group in self.groups.items() if node in nodes}
        return [*self.groups.values(), *self.left]

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
        self.groups[node] = self.maker.reserve(bundles)

    def renew(self, node: int) -> None:
        """A reservation that has lost its node is given up: Ray's server would try to place it again without
        a pause, as long as none is free, and take what processor time there is; a new one it tries with
        pauses (ray-project/ray, pull request 65970)."""
        if _lost(self.groups[node]):
            self.release(node)
            self.ask_for(node)
        for group in [group for group in self.left if _lost(group)]:
            self.left.remove(group)
            give_back(group)

    def has_place(self, node: int) -> bool:
        return _state(self.groups[node]) == "CREATED"

    def move(self, node: int) -> bool:
        before = self.groups[node]
        self.ask_for(node)
        if self.groups[node].wait(MOVE_SECONDS):
            self.left.append(before)
            return True
        self.release(node)
        self.groups[node] = before
        return False

    def release(self, node: int) -> None:
        give_back(self.groups.pop(node))

    def on_device(self, node: int, number: int) -> Home:
        return {"resources": {self.resource: 1}, **self._in_bundle(node, number)}

    def beside(self, node: int | None) -> Home:
        return {} if node is None else self._in_bundle(node, 0)

    def near(self, node: int) -> Home:
        table = placement_group_table(self.groups[node])
        return on_node(table["bundles_to_node_id"][0])

    def warehouse_homes(self, warehouses: int, *, spread: int | None) -> list[Home]:
        return warehouse_homes(warehouses, spread=spread)

    def hold_ports(self, count: int) -> list[int]:
        return self.maker.hold_ports(count)

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
        return RayWorker(self.maker.start(kind, options, arguments, named), group)

    def end(self, worker: Any) -> None:
        end_actor(worker.actor)

    def dead(self, workers: Sequence[Any]) -> list[bool]:
        calls = [worker.actor.__ray_ready__.remote() for worker in workers]
        died, pending, deadline = set[Any](), calls, time.monotonic() + NOTICE_SECONDS
        while pending and time.monotonic() < deadline:
            ended, pending = ray.wait(pending, num_returns=len(pending), timeout=SAME_BLOW_SECONDS)
            found = {call for call in ended if _has_died(call)}
            if died and not found:
                break
            died |= found
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
    """Without its node, or given up by a driver that died before it could tell the next one."""
    return _state(group) in ("RESCHEDULING", "REMOVED")


class _Call(Future[Any]):
    """The future of a reference to a result. Holds the reference: Ray drops what nobody holds."""

    def __init__(self, reference: Any) -> None:
        super().__init__()
        self.reference = reference
        reference.future().add_done_callback(self._ended)

    def _ended(self, theirs: Future[Any]) -> None:
        error = theirs.exception(timeout=0)
        if error is None:
            self.set_result(theirs.result(timeout=0))
        else:
            self.set_exception(_of_rljob(error))


def _of_rljob(error: BaseException) -> BaseException:
    """What a worker raised, without Ray's frames around it. rljob's own errors are themselves."""
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
