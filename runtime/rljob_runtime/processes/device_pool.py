"""Manage the device workers of a run, and the reservations of their nodes.

Called by `placement` at a run's start and by `elastic` when devices join and leave. A node's reservation
ends with its last device.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from rljob_runtime.processes.actors.device_worker import DeviceWorker
from rljob_runtime.processes.workers import Worker, Workers
from rljob_runtime.worker.device_role import DeviceRole


@dataclass(slots=True, kw_only=True)
class DevicePool:
    """The device workers' class, arguments and nodes. kind: class of the device workers. arguments:
    those before the role, and the number of threads after it. nodes: those that are reserved or
    requested."""

    workers: Workers
    per_node: int
    kind: type = DeviceWorker
    nodes: set[int] = field(default_factory=set)
    arguments: tuple[tuple[Any, ...], int] = ((), 1)

    def reserve(self, nodes: int) -> None:
        """Reserve the first nodes. Raises WorkerError if there are none within the deadline."""
        self.workers.reserve(nodes)
        self.nodes = set(range(nodes))

    def renew(self, nodes: Collection[int]) -> None:
        """Reserve replacements for the lost ones among these nodes."""
        for node in self.nodes.intersection(nodes):
            self.workers.renew(node)

    def hire(self, role: DeviceRole) -> Worker:
        """Return a device worker in its role. It starts once its node is available; calls to it wait
        for that."""
        if role.node not in self.nodes:
            self.workers.ask_for(role.node)
            self.nodes.add(role.node)
        else:
            self.workers.renew(role.node)
        before, num_threads = self.arguments
        home = self.workers.on_device(role.node, role.rank % self.per_node)
        return self.workers.start(self.kind, *before, role, num_threads, home=home)

    def dismiss(self, worker: Worker, role: DeviceRole, *, staying: Collection[int]) -> None:
        """End a device worker, and its node's reservation unless the node is among the staying ones."""
        self.workers.end(worker)
        if (
            role.node not in staying and role.node in self.nodes
        ):  # several may leave one node together
            self.nodes.discard(role.node)
            self.workers.release(role.node)

    def has_place(self, node: int) -> bool:
        """Return whether the node's devices are available."""
        return self.workers.has_place(node)
