"""The seam between a run and its processes: workers are started, called, and ended.

`on_ray`, `local_workers` and, in virtual time, `simulate` carry it out; everything above them knows these
names alone. A call is a future of the standard library: `concurrent.futures.wait` waits for it, and `result`
returns what the worker did or raises RljobError.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

Call = Future[Any]
"""Of a worker's method. Cancelling it does nothing to the worker."""

Home = dict[str, Any]
"""Where a worker goes; only the `Workers` that made it can read it."""


class Worker(Protocol):
    """A process of the run. worker.method(*arguments) begins a call; one is carried out after the other. An
    argument may be a call itself: its result is what the method is given."""

    def __getattr__(self, name: str, /) -> Callable[..., Call]: ...


class Workers(Protocol):
    """Where a run's workers are.

    host: this process' address for the workers. may_move: whether a worker that is started again may have
    another address.
    """

    @property
    def host(self) -> str: ...

    @property
    def may_move(self) -> bool: ...

    def reserve(self, nodes: int) -> None:
        """Reserve the devices of the first nodes. Raises WorkerError where there are none in time."""

    def ask_for(self, node: int) -> None:
        """Reserve the devices of one more node, whenever it comes."""

    def renew(self, node: int) -> None:
        """Where a reserved node was lost, reserve another in its place, whenever it comes."""

    def has_place(self, node: int) -> bool:
        """Whether the node's devices are there."""

    def move(self, node: int) -> bool:
        """Whether another node is free, which then is in this one's place for workers that start from now on;
        the first stays reserved, and who is beside it stays there."""

    def release(self, node: int) -> None:
        """End a node's reservation."""

    def on_device(self, node: int, number: int) -> Home:
        """With one of a node's devices for itself."""

    def beside(self, node: int | None) -> Home:
        """On the node of a reservation without using any of it; None: anywhere."""

    def near(self, node: int) -> Home:
        """On the node where a reservation is now, while that is there; else anywhere."""

    def warehouse_homes(self, warehouses: int, *, spread: int | None) -> list[Home]:
        """For each warehouse its place, where there are places of their own for them; else none. spread: over
        so many of these, two that follow each other not together; None: wherever there is room."""

    def hold_ports(self, count: int) -> list[int]:
        """Free ports of this machine, for servers of the run alone, which may start again."""

    def start(
        self,
        kind: type,
        *arguments: Any,
        home: Home,
        name: str | None = None,
        restarts: bool = False,
        **named: Any,
    ) -> Worker:
        """Begin to start a worker of this class; calls to it wait for that. name: others find it by it.
        restarts: whenever it dies, it is started again with the same arguments."""

    def end(self, worker: Worker) -> None:
        """End it at once, whatever it does."""

    def dead(self, workers: Sequence[Worker]) -> list[bool]:
        """Whether each has died, as far as that shows in a few seconds."""

    def has_reservation(self, worker: Worker) -> bool:
        """Whether the reservation that it was begun in is still held. A worker that had not started when it
        was given up never starts, and is not dead."""


class Anywhere:
    """Of `Workers` of which there are as many as are asked for, all in one place."""

    may_move = False

    def reserve(self, nodes: int) -> None:
        """They are there."""

    def ask_for(self, node: int) -> None:
        """As `reserve`."""

    def renew(self, node: int) -> None:
        """As `reserve`."""

    def has_place(self, node: int) -> bool:
        return True

    def move(self, node: int) -> bool:
        return False

    def release(self, node: int) -> None:
        """As `reserve`."""

    def on_device(self, node: int, number: int) -> Home:
        return {}

    def beside(self, node: int | None) -> Home:
        return {}

    def near(self, node: int) -> Home:
        return {}

    def has_reservation(self, worker: Worker) -> bool:
        return True

    def warehouse_homes(self, warehouses: int, *, spread: int | None) -> list[Home]:
        return []
