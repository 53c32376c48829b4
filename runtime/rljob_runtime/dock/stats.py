"""Statistics of a dock: what each server reports, and their sums."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rljob_runtime.dock.frames import Fields


@dataclass(slots=True, kw_only=True)
class Traffic:
    """What one client did since it was last asked. rows: written or acknowledged first.

    bytes_read, bytes_written: of column values. wait_seconds: in claims. shared_paths, tcp_paths:
    warehouses that it reads in their memory, and over TCP.
    """

    rows: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    wait_seconds: float = 0.0
    shared_paths: int = 0
    tcp_paths: int = 0

    def add(self, other: "Traffic") -> None:
        """Add another client's."""
        self.rows += other.rows
        self.bytes_read += other.bytes_read
        self.bytes_written += other.bytes_written
        self.wait_seconds += other.wait_seconds
        self.shared_paths += other.shared_paths
        self.tcp_paths += other.tcp_paths


def flow_event(reports: Iterable[Mapping[str, Traffic]]) -> dict[str, dict[str, Any]]:
    """The fields `states` and `data_paths` of the dock's event: what each state's clients did."""
    sums: dict[str, Traffic] = {}
    for state, traffic in (item for report in reports for item in report.items()):
        sums.setdefault(state, Traffic()).add(traffic)
    states = {state: asdict(traffic) for state, traffic in sums.items()}
    paths = {
        state: {"shared": moved.pop("shared_paths"), "tcp": moved.pop("tcp_paths")}
        for state, moved in states.items()
    }
    return {"states": states, "data_paths": paths}


@dataclass(frozen=True, slots=True, kw_only=True)
class DockStats:
    """servers: each server's report by role, as docs/dock.md lists it.

    rows, bytes: in all warehouses. batches: live rows of each batch. unacknowledged: live rows that
    each state has not acknowledged. refused: connections and frames refused by all servers, by
    reason. waiting: parked requests. leased: rows under a lease in all controllers.
    """

    servers: Mapping[str, Mapping[str, Any]]
    rows: int
    bytes: int
    batches: Mapping[str, int]
    unacknowledged: Mapping[str, int]
    refused: Mapping[str, int]
    waiting: int
    leased: int

    @classmethod
    def from_answers(cls, answers: Mapping[str, Fields]) -> "DockStats":
        """Sums over the servers' answers."""
        warehouses = [answer for answer in answers.values() if answer.has("capacity")]
        controllers = [answer for answer in answers.values() if not answer.has("capacity")]
        return cls(
            servers={role: answer.map for role, answer in answers.items()},
            rows=sum(w.integer("rows") for w in warehouses),
            bytes=sum(w.integer("bytes") for w in warehouses),
            batches=_summed(warehouses, "batches"),
            unacknowledged=_summed(warehouses, "unacknowledged"),
            refused=_summed(list(answers.values()), "refused"),
            waiting=sum(answer.integer("waiting") for answer in answers.values()),
            leased=sum(c.integer("leased") for c in controllers),
        )


def _summed(answers: list[Fields], name: str) -> dict[str, int]:
    total: Counter[str] = Counter()
    for answer in answers:
        total.update(answer.map[name])
    return dict(total)
