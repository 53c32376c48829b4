"""What a step moved through the dock, as fields of its event. Called by the driver."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import ray

from rljob_runtime.dock.stats import Traffic

ROOM_TIMEOUT_SECONDS = 5.0


def dock_fields(
    moved: Sequence[Mapping[str, Traffic]], warehouses: Sequence[Any]
) -> dict[str, Any]:
    """Traffic of each state over all workers, and each warehouse's room.

    warehouses: their actors; one that restarts now is left out.
    """
    states: dict[str, Traffic] = {}
    for state, traffic in (item for report in moved for item in report.items()):
        states.setdefault(state, Traffic()).add(traffic)
    rooms = []
    for index, warehouse in enumerate(warehouses):
        with contextlib.suppress(ray.exceptions.RayError):
            room = ray.get(warehouse.room.remote(), timeout=ROOM_TIMEOUT_SECONDS)
            rooms.append({"index": index, **room})
    return {
        "states": {state: asdict(traffic) for state, traffic in states.items()},
        "warehouses": rooms,
    }
