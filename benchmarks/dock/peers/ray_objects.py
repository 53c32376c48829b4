"""Ray's object store: the rows of a put are one object of numpy arrays, an actor hands out references.

Runs in TransferQueue's environment. Readers look at the arrays where they lie, without a copy. An
object is lost with the process that put it, which no other side here allows itself.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import ray

from benchmarks.dock.peers.transfer_queue import POLL_SECONDS, connect
from benchmarks.dock.sample_flow.payload import Array, Column

NAME = "references"
Piece = tuple[Any, int, int]


@ray.remote(num_cpus=0)
class References:
    """References to objects by batch, with how many rows they have, and what each state got."""

    def __init__(self) -> None:
        self._objects: dict[str, list[tuple[Any, int]]] = {}
        self._given: dict[tuple[str, str], tuple[int, int]] = {}

    def put(self, batch: str, boxed: list[Any], num_rows: int) -> None:
        """Take down an object's reference, which comes in a list so that Ray leaves it one."""
        self._objects.setdefault(batch, []).append((boxed[0], num_rows))

    def claim(self, batch: str, state: str, limit: int) -> list[Piece]:
        """The next rows: (reference, first row, behind the last) of each object with some."""
        objects = self._objects.get(batch, [])
        place, first = self._given.get((batch, state), (0, 0))
        pieces: list[Piece] = []
        while limit and place < len(objects):
            reference, num_rows = objects[place]
            stop = min(num_rows, first + limit)
            pieces.append((reference, first, stop))
            limit -= stop - first
            place, first = (place + 1, 0) if stop == num_rows else (place, stop)
        self._given[batch, state] = (place, first)
        return pieces

    def drop(self, batch: str) -> None:
        """Forget the batch."""
        self._objects.pop(batch, None)
        self._given = {key: n for key, n in self._given.items() if key[0] != batch}


class ObjectHost:
    """See Host."""

    def __init__(self, address: str) -> None:
        connect(address)
        self._actor = References.options(name=NAME).remote()  # type: ignore[attr-defined]
        ray.get(self._actor.drop.remote(""))
        self.address = address

    def close(self) -> None:
        """The actor ends with its Ray."""


class ObjectSide:
    """See Side. A claim is pieces of objects."""

    def __init__(self, address: str) -> None:
        connect(address)
        self._actor = ray.get_actor(NAME)

    def prepare(self, batch: str, first: int, columns: dict[str, Column]) -> dict[str, Any]:
        """Arrays of values and of lengths."""
        return {name: (column.values, column.lengths) for name, column in columns.items()}

    def put(self, batch: str, prepared: dict[str, Any], *, total: int, states: list[str]) -> None:
        """See Side."""
        num_rows = len(next(iter(prepared.values()))[1])
        ray.get(self._actor.put.remote(batch, [ray.put(prepared)], num_rows))

    def claim(
        self, batch: str, state: str, columns: list[str], limit: int
    ) -> tuple[list[Piece], int] | None:
        """See Side."""
        pieces: list[Piece] = ray.get(self._actor.claim.remote(batch, state, limit))
        if pieces:
            return pieces, sum(stop - first for _, first, stop in pieces)
        time.sleep(POLL_SECONDS)
        return None

    @contextmanager
    def get(self, claim: list[Piece], columns: list[str], way: str) -> Iterator[Iterable[Array]]:
        """See Side."""
        objects = ray.get([reference for reference, _, _ in claim])
        yield [
            Column(*columns_of[name]).rows(first, stop).values
            for columns_of, (_, first, stop) in zip(objects, claim, strict=True)
            for name in columns
        ]

    def finish(self, state: str, claim: list[Piece]) -> None:
        """A claim has consumed its rows."""

    def drop(self, batch: str) -> None:
        """See Side."""
        ray.get(self._actor.drop.remote(batch))


def open_host(address: str) -> ObjectHost:
    """See sample_flow.side. address: of the Ray."""
    return ObjectHost(address)


def open_side(address: str) -> ObjectSide:
    """See sample_flow.side."""
    return ObjectSide(address)
