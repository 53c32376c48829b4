"""Define the interface between a run and its processes: workers are started, called, and ended.

`on_ray`, `local_workers` and, in virtual time, `simulate` implement it; everything above them uses only
these names. A call is a future of the standard library: `concurrent.futures.wait` waits for it, and
`result` returns what the worker returned or raises RljobError.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

Call = Future[Any]
"""The pending result of a worker's method. Cancelling it does not affect the worker."""

Home = dict[str, Any]
"""Where a worker starts; only the `Workers` that created it can read it."""


class Worker(Protocol):
    """A process of the run. `worker.method(*arguments)` begins a call; calls run one after the other.
    An argument may be a call itself: the method receives its result."""

    def __getattr__(self, name: str, /) -> Callable[..., Call]: ...


class Workers(Protocol):
    """The interface for starting and ending a run's workers.

    host: this process' address for the workers. may_move: whether a restarted worker may have another
    address.
    """

    @property
    def host(self) -> str:
        """Return the address of this process at which workers reach it."""
        ...

    @property
    def may_move(self) -> bool:
        """Return whether a restarted worker may have another address than before."""
        ...

    def reserve(self, nodes: int) -> None:
        """Reserve the devices of the first nodes. Raises WorkerError if there are none before the
        deadline."""

    def ask_for(self, node: int) -> None:
        """Reserve the devices of one more node, whenever it becomes available."""

    def renew(self, node: int) -> None:
        """Reserve another node if this reserved one was lost, whenever one becomes available."""

    def has_place(self, node: int) -> bool:
        """Return whether the node's devices are available."""

    def move(self, node: int) -> bool:
        """Return whether another node is free. That node then replaces this one for workers that start
        from now on.

        The first node stays reserved, and the workers on it stay there.
        """

    def release(self, node: int) -> None:
        """End a node's reservation."""

    def on_device(self, node: int, number: int) -> Home:
        """Return the home of a worker with one of a node's devices for itself."""

    def on_reserved_node(self, node: int | None) -> Home:
        """Return a home on a reserved node that uses none of its resources; None: any node."""

    def near(self, node: int) -> Home:
        """Return a home on the node that a reservation has now, while the node exists; otherwise on
        any node."""

    def warehouse_homes(self, warehouses: int, *, spread: int | None) -> list[Home]:
        """Return a home for each warehouse if there are pods reserved for them; otherwise none.

        spread: number of pods to use, with two consecutive warehouses in different ones; None: any with
        capacity.
        """

    def hold_ports(self, count: int) -> list[int]:
        """Hold free ports of this machine for servers of this run, which may restart on them."""

    def start(
        self,
        kind: type,
        *arguments: Any,
        home: Home,
        name: str | None = None,
        restarts: bool = False,
        **named: Any,
    ) -> Worker:
        """Begin to start a worker of this class; calls to it wait for that.

        name: the name by which others find it. restarts: whether it is started again with the same
        arguments whenever it dies.
        """

    def end(self, worker: Worker) -> None:
        """Kill the worker immediately, whatever it does."""

    def dead(self, workers: Sequence[Worker]) -> list[bool]:
        """Return for each worker whether it has died, as far as this can be seen within a few seconds."""

    def has_reservation(self, worker: Worker) -> bool:
        """Return whether the reservation that the worker was started in still exists. A worker that
        had not started when its reservation ended never starts, and does not count as dead."""


class Anywhere:
    """Base of `Workers` with unlimited workers, all on one machine."""

    may_move = False

    def reserve(self, nodes: int) -> None:
        """Do nothing: all nodes are available."""

    def ask_for(self, node: int) -> None:
        """Do nothing: all nodes are available."""

    def renew(self, node: int) -> None:
        """Do nothing: no node is lost."""

    def has_place(self, node: int) -> bool:
        """Return True: all nodes are available."""
        return True

    def move(self, node: int) -> bool:
        """Return False: no other node is needed."""
        return False

    def release(self, node: int) -> None:
        """Do nothing: there are no reservations."""

    def on_device(self, node: int, number: int) -> Home:
        """Return an empty home: all workers share this machine."""
        return {}

    def on_reserved_node(self, node: int | None) -> Home:
        """Return an empty home: all workers share this machine."""
        return {}

    def near(self, node: int) -> Home:
        """Return an empty home: all workers share this machine."""
        return {}

    def has_reservation(self, worker: Worker) -> bool:
        """Return True: no reservation can end."""
        return True

    def warehouse_homes(self, warehouses: int, *, spread: int | None) -> list[Home]:
        """Return an empty list: no pods are reserved for warehouses."""
        return []
