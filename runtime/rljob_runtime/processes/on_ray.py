"""A run's workers as actors of Ray, which places them, supervises them and starts them again.

Made by `launch` within Ray's session. Every actor asks for 0 CPUs, so that a small machine never waits for a
reservation that cannot be met; devices are what is reserved: a placement group with a bundle for each
device of a node.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rljob_runtime.errors import RljobError, WorkerError, WorkerFailed
from rljob_runtime.processes.warehouse_homes import warehouse_homes
from rljob_runtime.processes.workers import Call, Home, Worker

PLACEMENT_DEADLINE_SECONDS = 120.0
NOTICE_SECONDS = 5.0
"""How long Ray is given to notice a death; workers that live but are busy use it up."""


class RayWorker:
    """An actor."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor

    def __getattr__(self, name: str) -> Callable[..., Call]:
        method = getattr(self.actor, name)

        def call(*arguments: Any) -> Call:
            given = [each.reference if isinstance(each, _Call) else each for each in arguments]
            return _Call(method.remote(*given))

        return call


@dataclass(slots=True, kw_only=True)
class RayWorkers:
    """Actors of this session. per_node: devices of a node. resource: Ray's name of a device. groups: the
    reservation of each node."""

    per_node: int
    resource: str
    may_move: bool = True
    groups: dict[int, PlacementGroup] = field(default_factory=dict)

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
        self.groups[node] = placement_group(bundles, strategy="STRICT_PACK")

    def has_place(self, node: int) -> bool:
        return bool(placement_group_table(self.groups[node])["state"] == "CREATED")

    def release(self, node: int) -> None:
        remove_placement_group(self.groups.pop(node))

    def on_device(self, node: int, number: int) -> Home:
        return {"resources": {self.resource: 1}, **self._in_bundle(node, number)}

    def beside(self, node: int | None) -> Home:
        return {} if node is None else self._in_bundle(node, 0)

    def warehouse_homes(self, warehouses: int, *, apart: bool) -> list[Home]:
        return warehouse_homes(warehouses, apart=apart)

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
        return RayWorker(ray.remote(kind).options(**options).remote(*arguments, **named))

    def end(self, worker: Any) -> None:
        ray.kill(worker.actor)

    def dead(self, workers: Sequence[Any]) -> list[bool]:
        calls = [worker.actor.__ray_ready__.remote() for worker in workers]
        ended, _ = ray.wait(calls, num_returns=len(calls), timeout=NOTICE_SECONDS)
        return [call in ended and _has_died(call) for call in calls]

    def _in_bundle(self, node: int, number: int) -> Home:
        group = self.groups[node]
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
        return {"scheduling_strategy": strategy}


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
