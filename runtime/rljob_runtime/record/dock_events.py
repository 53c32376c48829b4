"""The traffic of a step through the dock, as an event. Called by the driver."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.stats import DockTraffic
from rljob_runtime.errors import DockError, DockStale, RljobError
from rljob_runtime.record.event_types import DockEvent, Edge, Rows, StateTraffic, Warehouse

ROOM_TIMEOUT_SECONDS = 5.0


def dock_event(
    step: int,
    traffic: Iterable[Mapping[str, DockTraffic]],
    graph: StateGraph,
    *,
    warehouses: Sequence[Any] = (),
    rows: Rows | None = None,
    dropped: Mapping[str, int] | None = None,
) -> DockEvent:
    """Build the `dock` event of a step.

    traffic: by state, one mapping per worker. warehouses: their actors; one that is restarting is left out.
    dropped: rows that were dropped and generated again, by reason; None in most steps.
    """
    rooms = []
    for index, warehouse in enumerate(warehouses):
        with contextlib.suppress(RljobError, TimeoutError):
            room = warehouse.room().result(timeout=ROOM_TIMEOUT_SECONDS)
            rooms.append(Warehouse(index=index, **room))
    sums: dict[str, DockTraffic] = {}
    for state, moved in (item for report in traffic for item in report.items()):
        sums.setdefault(state, DockTraffic()).add(moved)
    return DockEvent(
        step=step,
        states={
            state: StateTraffic(
                rows=moved.rows,
                bytes_read=moved.bytes_read.total(),
                bytes_written=moved.bytes_written,
                wait_seconds=moved.wait_seconds,
                transfer_seconds=moved.transfer_seconds,
                waits=moved.waits,
            )
            for state, moved in sums.items()
        },
        edges=[edge for state, moved in sums.items() for edge in _edges(state, moved, graph)],
        data_paths={
            state: {"shared": moved.shared_paths, "tcp": moved.tcp_paths}
            for state, moved in sums.items()
        },
        warehouses=rooms,
        rows=rows,
        dropped=dict(dropped) if dropped else None,
        regenerated=sum(dropped.values()) if dropped else None,
    )


def reason_of(error: DockError) -> str:
    """Return why rows were dropped: `stale` if they were too old, `lost` if the dock lost them."""
    return "stale" if isinstance(error, DockStale) else "lost"


def _edges(state: str, traffic: DockTraffic, graph: StateGraph) -> Iterator[Edge]:
    """Yield the rows that the state read, by writer. A row counts once, however many of its columns were
    read."""
    rows: dict[str, int] = {}
    num_bytes: Counter[str] = Counter()
    for column, count in traffic.rows_read.items():
        writer = graph.writer(column)
        rows[writer] = max(rows.get(writer, 0), count)
        num_bytes[writer] += traffic.bytes_read[column]
    for writer, count in rows.items():
        yield Edge(from_=writer, to=state, rows=count, bytes=num_bytes[writer])
