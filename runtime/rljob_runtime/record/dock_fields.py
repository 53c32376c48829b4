"""What a step moved through the dock, as fields of its event. Called by the driver."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from rljob_runtime.dock.graph import StateGraph
from rljob_runtime.dock.stats import Traffic, flow_event
from rljob_runtime.errors import DockError, DockStale, RljobError

ROOM_TIMEOUT_SECONDS = 5.0


def dock_fields(
    moved: Sequence[Mapping[str, Traffic]], warehouses: Sequence[Any], graph: StateGraph
) -> dict[str, Any]:
    """Traffic of each state over all workers, and what each warehouse says of itself.

    warehouses: their actors; one that restarts now is left out.
    """
    rooms = []
    for index, warehouse in enumerate(warehouses):
        with contextlib.suppress(RljobError, TimeoutError):
            room = warehouse.room().result(timeout=ROOM_TIMEOUT_SECONDS)
            rooms.append({"index": index, **room})
    return {**flow_event(moved, graph), "warehouses": rooms}


def reason_of(error: DockError) -> str:
    """Why rows were dropped: they were too old, or their dock lost them."""
    return "stale" if isinstance(error, DockStale) else "lost"


def again_fields(dropped: Mapping[str, int]) -> dict[str, Any]:
    """Rows of a step that were dropped, by reason, and so generated again; nothing for most steps."""
    if not dropped:
        return {}
    return {"dropped": dict(dropped), "regenerated": sum(dropped.values())}
