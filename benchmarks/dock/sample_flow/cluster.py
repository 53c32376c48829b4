"""A system that carries samples over several machines: S nodes, each with a link for its worker and one
for its share of the data.

So no row is ever read where it lies, whatever S is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

import psutil

from benchmarks.dock.sample_flow.network import Network
from benchmarks.dock.sample_flow.processes import Process


class Servers(Protocol):
    """A system's servers.

    side: its name in `sample_flow.side`. python: of its workers. machines: names of those that it needs
    beside the workers'; data: those of them that hold rows, by number. claimed_rows: at a time.
    """

    @property
    def side(self) -> str: ...
    @property
    def python(self) -> str: ...
    @property
    def machines(self) -> Sequence[str]: ...
    @property
    def data(self) -> Sequence[str]: ...
    @property
    def claimed_rows(self) -> int: ...

    def start(self, network: Network, workers: Sequence[str], folder: Path) -> Any:
        """Answers the address for its sides. folder: for logs."""

    def close(self) -> None:
        """End them; also after a start that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one step took.

    put_seconds, read_seconds: of its two phases. put_bytes, read_bytes: over the link of each machine
    with data, headers included, received while rows were put and sent while they were read.
    notice_bytes: sent while they were put, nearly all of it broadcast. held_bytes: by each server
    between the two, where it says. other_node: share of reads of a row that lies at another node.
    busy: share of the processors' time.
    """

    put_seconds: float
    read_seconds: float
    put_bytes: list[int]
    notice_bytes: list[int]
    read_bytes: list[int]
    held_bytes: list[int]
    other_node: float
    busy: float

    @property
    def seconds(self) -> float:
        """Of both phases."""
        return self.put_seconds + self.read_seconds


class Cluster:
    """Servers and workers on a network; a context manager.

    nodes: S. states: columns that each reads, none for a state that only acknowledges.
    megabytes_per_second: of each link, each way; 0: as fast as it is.
    """

    def __init__(
        self,
        nodes: int,
        servers: Servers,
        states: Mapping[str, Sequence[str]],
        *,
        megabytes_per_second: float,
        folder: Path,
    ) -> None:
        self._servers, self._states, self._folder = servers, states, folder
        self._workers = [f"worker{i}" for i in range(nodes)]
        self._network = Network(
            [*self._workers, *servers.machines], megabytes_per_second=megabytes_per_second
        )
        self._nodes: list[Process] = []
        self._steps = 0

    def __enter__(self) -> Self:
        self._network.__enter__()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def step(self, lengths: Mapping[str, int], rows: int) -> Step:
        """All nodes put so many rows each; then all read all of them, as each state."""
        self._steps += 1
        batch, total = f"step-{self._steps}", rows * len(self._nodes)
        for number, node in enumerate(self._nodes):
            node.ask("make", batch=batch, lengths=lengths, first=number * rows, count=rows)
        psutil.cpu_percent()
        start = self._traffic()
        put = self._all("put", batch=batch, total=total)
        between = self._traffic()
        held = self._nodes[0].ask("held")
        work = self._all("work", batch=batch, limit=self._servers.claimed_rows)
        end, busy = self._traffic(), psutil.cpu_percent() / 100
        self._nodes[0].ask("drop", batch=batch)
        return Step(
            put_seconds=max(ended for _, ended in put) - min(began for began, _ in put),
            read_seconds=max(w["ended"] for w in work) - min(w["began"] for w in work),
            put_bytes=_grown(start, between, "received"),
            notice_bytes=_grown(start, between, "sent"),
            read_bytes=_grown(between, end, "sent"),
            held_bytes=held,
            other_node=self._other_node([w["read"] for w in work], total),
            busy=busy,
        )

    def close(self) -> None:
        """End the processes and the network."""
        for node in self._nodes:
            node.close()
        self._nodes.clear()
        self._servers.close()
        self._network.__exit__()

    def _start(self) -> None:
        address = self._servers.start(self._network, self._workers, self._folder)
        states = {state: list(columns) for state, columns in self._states.items()}
        for name in self._workers:
            log, prefix = self._folder / f"{name}.log", self._network.prefix(name)
            node = Process(
                self._servers.python, log, module="benchmarks.dock.sample_flow.node", prefix=prefix
            )
            self._nodes.append(node)
            node.tell("open", side=self._servers.side, address=address, states=states)
        for node in self._nodes:
            node.answer()

    def _all(self, do: str, **order: Any) -> list[Any]:
        for node in self._nodes:
            node.tell(do, **order)
        return [node.answer() for node in self._nodes]

    def _traffic(self) -> list[dict[str, int]]:
        return [self._network.traffic(name) for name in self._servers.data]

    def _other_node(self, reads: Sequence[Mapping[str, int]], total: int) -> float:
        """Also makes sure that nobody left a row out."""
        everywhere = sum(sum(read.values()) for read in reads)
        wanted = total * sum(bool(columns) for columns in self._states.values())
        assert everywhere == wanted, f"{everywhere} of {wanted} rows were read"
        own = sum(read.get(str(number), 0) for number, read in enumerate(reads))
        return 1 - own / everywhere


def _grown(early: list[dict[str, int]], late: list[dict[str, int]], way: str) -> list[int]:
    return [after[way] - before[way] for before, after in zip(early, late, strict=True)]
