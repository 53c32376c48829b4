"""A replay buffer in one Ray actor: TensorDicts in, TensorDicts out, as the usual central buffer.

Runs in TransferQueue's environment. The actor keeps a list of rows a column and stacks those that
are asked for.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import ray
import torch
from tensordict import TensorDict

from benchmarks.dock.peers.transfer_queue import POLL_SECONDS, arrays, connect, tensor_dict
from benchmarks.dock.sample_flow.payload import Array, Column

NAME = "buffer"


@ray.remote(num_cpus=0)
class Buffer:
    """Rows by batch and column, and how many of them each state has been given."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, list[torch.Tensor]]] = {}
        self._given: dict[tuple[str, str], int] = {}

    def put(self, batch: str, data: TensorDict) -> None:
        """Append the rows."""
        rows = self._rows.setdefault(batch, {})
        for name, tensor in data.items():
            rows.setdefault(name, []).extend(tensor.unbind(0))

    def claim(self, batch: str, state: str, column: str, limit: int) -> tuple[int, int]:
        """The next rows: first and behind the last."""
        there = len(self._rows.get(batch, {}).get(column, ()))
        first = self._given.get((batch, state), 0)
        stop = min(there, first + limit)
        self._given[batch, state] = stop
        return first, stop

    def get(self, batch: str, first: int, stop: int, columns: list[str]) -> TensorDict:
        """These rows, dense where they are of one length."""
        tensors = {}
        for name in columns:
            rows = self._rows[batch][name][first:stop]
            if len({len(row) for row in rows}) == 1:
                tensors[name] = torch.stack(rows)
            else:
                tensors[name] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        return TensorDict(tensors, batch_size=[stop - first])

    def drop(self, batch: str) -> None:
        """Forget the batch."""
        self._rows.pop(batch, None)
        self._given = {key: n for key, n in self._given.items() if key[0] != batch}


class ActorHost:
    """See Host."""

    def __init__(self, address: str) -> None:
        connect(address)
        self._actor = Buffer.options(name=NAME).remote()  # type: ignore[attr-defined]
        ray.get(self._actor.drop.remote(""))
        self.address = address

    def close(self) -> None:
        """The actor ends with its Ray."""


Rows = tuple[str, int, int]


class ActorSide:
    """See Side. A claim is (batch, first, stop)."""

    def __init__(self, address: str) -> None:
        connect(address)
        self._actor = ray.get_actor(NAME)

    def prepare(self, batch: str, first: int, columns: dict[str, Column]) -> TensorDict:
        """See Side."""
        return tensor_dict(columns)

    def put(self, batch: str, prepared: TensorDict, *, total: int, states: list[str]) -> None:
        """See Side."""
        ray.get(self._actor.put.remote(batch, prepared))

    def claim(
        self, batch: str, state: str, columns: list[str], limit: int
    ) -> tuple[Rows, int] | None:
        """See Side."""
        first, stop = ray.get(self._actor.claim.remote(batch, state, columns[0], limit))
        if stop > first:
            return (batch, first, stop), stop - first
        time.sleep(POLL_SECONDS)
        return None

    @contextmanager
    def get(self, claim: Rows, columns: list[str], way: str) -> Iterator[Iterable[Array]]:
        """See Side."""
        yield arrays(ray.get(self._actor.get.remote(*claim, columns)))

    def finish(self, state: str, claim: Rows) -> None:
        """A claim has consumed its rows."""

    def drop(self, batch: str) -> None:
        """See Side."""
        ray.get(self._actor.drop.remote(batch))


def open_host(address: str) -> ActorHost:
    """See sample_flow.side. address: of the Ray."""
    return ActorHost(address)


def open_side(address: str) -> ActorSide:
    """See sample_flow.side."""
    return ActorSide(address)
