"""What a system that carries samples must do to be measured, and where each one is.

One object a process and system; the benchmark's workers call it, and the clock runs outside of it.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol

from benchmarks.dock.sample_flow.payload import Array, Column

Address = Any
MODULES = {
    "rljob": "benchmarks.dock.sample_flow.ours",
    "bare program": "benchmarks.dock.peers.bare",
    "TransferQueue": "benchmarks.dock.peers.transfer_queue",
    "Ray actor": "benchmarks.dock.peers.ray_actor",
    "Ray object store": "benchmarks.dock.peers.ray_objects",
}
WAYS = ("read", "view")
"""Into arrays of the reader's own, or looked at where the bytes are; one and the same for most."""


class Host(Protocol):
    """The system's servers. `address` goes, as JSON, to its sides in other processes."""

    address: Address

    def close(self) -> None:
        """End them."""


class Side(Protocol):
    """One process's access."""

    def prepare(self, batch: str, first: int, columns: dict[str, Column]) -> Any:
        """Rows in the form in which the system's callers hold them. first: number of their first."""

    def put(self, batch: str, prepared: Any, *, total: int, states: list[str]) -> None:
        """Put them; when it returns, others can get them."""

    def claim(
        self, batch: str, state: str, columns: list[str], limit: int
    ) -> tuple[Any, int] | None:
        """Rows for the state that nobody else of the state gets, and how many; None: ask again."""

    def get(
        self, claim: Any, columns: list[str], way: str
    ) -> AbstractContextManager[Iterable[Array]]:
        """The columns of claimed rows, as any number of arrays."""

    def finish(self, state: str, claim: Any) -> None:
        """The state is done with the rows."""

    def drop(self, batch: str) -> None:
        """Leave nothing of a batch."""


class SpreadSide(Side, Protocol):
    """A side whose data lies at several servers, numbered."""

    def places(self, claim: Any) -> list[int]:
        """The server of each row of a claim."""

    def held_bytes(self) -> list[int]:
        """What each server holds; [] where the system does not say."""


def open_host(name: str, options: dict[str, Any]) -> Host:
    """Start a system. options: as its module's `open_host` takes them."""
    host: Host = import_module(MODULES[name]).open_host(**options)
    return host


def open_side(name: str, address: Address) -> Any:
    """Connect to a system: its Side, a SpreadSide of those that several machines run."""
    return import_module(MODULES[name]).open_side(address)
