"""The device workers of a run, and the reservations of the nodes that they sit on.

Called by `placement` at a run's start and by `elastic` when devices come and go. A node's reservation ends
with its last device.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from rljob_runtime.actors.device import DeviceWorker, Seat
from rljob_runtime.processes.workers import Worker, Workers


@dataclass(slots=True, kw_only=True)
class DevicePool:
    """kind: class of the device workers. arguments: of each, around its seat: those before it and the number
    of threads. nodes: those that are reserved, or asked for."""

    workers: Workers
    per_node: int
    kind: type = DeviceWorker
    nodes: set[int] = field(default_factory=set)
    arguments: tuple[tuple[Any, ...], int] = ((), 1)

    def reserve(self, nodes: int) -> None:
        """Reserve the first nodes. Raises WorkerError where there are none within the deadline."""
        self.workers.reserve(nodes)
        self.nodes = set(range(nodes))

    def hire(self, seat: Seat) -> Worker:
        """A device worker in its seat. It starts once its node is there; calls to it wait for that."""
        if seat.node not in self.nodes:
            self.workers.ask_for(seat.node)
            self.nodes.add(seat.node)
        before, num_threads = self.arguments
        home = self.workers.on_device(seat.node, seat.rank % self.per_node)
        return self.workers.start(self.kind, *before, seat, num_threads, home=home)

    def dismiss(self, worker: Worker, seat: Seat, *, staying: Collection[int]) -> None:
        """End a device worker, and its node's reservation unless the node is among the staying."""
        self.workers.end(worker)
        if (
            seat.node not in staying and seat.node in self.nodes
        ):  # several may leave one node at once
            self.nodes.discard(seat.node)
            self.workers.release(seat.node)

    def has_place(self, node: int) -> bool:
        """Whether the node's devices are there."""
        return self.workers.has_place(node)
