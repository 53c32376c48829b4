"""Reservations of whole nodes, and the device workers that sit in them.

Called by `placement` at a run's start and by `elastic` when devices come and go. A reservation is a
placement group with a bundle for each device of a node; it ends with the node's last device.
"""

import time
from collections.abc import Collection
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

from rljob_runtime.actors.device import DeviceWorker, Seat
from rljob_runtime.errors import WorkerError

PLACEMENT_DEADLINE_SECONDS = 120.0


@dataclass(slots=True, kw_only=True)
class DevicePool:
    """resource: Ray's name of a device. groups: reservation of each node. kind: class of the device
    workers. arguments: of each, around its seat: those before it and the number of threads."""

    per_node: int
    resource: str
    kind: Any = DeviceWorker
    groups: dict[int, PlacementGroup] = field(default_factory=dict)
    arguments: tuple[tuple[Any, ...], int] = ((), 1)

    def reserve(self, nodes: int) -> None:
        """Reserve the first nodes. Raises WorkerError where Ray has none within the deadline."""
        for node in range(nodes):
            self._ask_for(node)
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

    def hire(self, seat: Seat) -> Any:
        """A device worker in its seat. It starts once Ray has its node; calls to it wait for that."""
        if seat.node not in self.groups:
            self._ask_for(seat.node)
        before, num_threads = self.arguments
        return self.kind.options(
            num_cpus=0,
            num_gpus=0,
            resources={self.resource: 1},
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self.groups[seat.node], placement_group_bundle_index=seat.rank % self.per_node
            ),
        ).remote(*before, seat, num_threads)

    def dismiss(self, worker: Any, seat: Seat, *, staying: Collection[int]) -> None:
        """End a device worker, and its node's reservation unless the node is among the staying."""
        ray.kill(worker)
        if (
            seat.node not in staying and seat.node in self.groups
        ):  # several may leave one node at once
            remove_placement_group(self.groups.pop(seat.node))

    def has_place(self, node: int) -> bool:
        """Whether Ray has found the node's devices."""
        return bool(placement_group_table(self.groups[node])["state"] == "CREATED")

    def _ask_for(self, node: int) -> None:
        bundles: list[dict[str, float]] = [{self.resource: 1}] * self.per_node
        self.groups[node] = placement_group(bundles, strategy="STRICT_PACK")


def beside(group: PlacementGroup | None) -> dict[str, Any]:
    """Options of an actor that goes to the node of a reservation without using any of it."""
    if group is None:
        return {}
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    return {"scheduling_strategy": strategy}
