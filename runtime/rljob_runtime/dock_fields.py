"""What a step moved through the dock, as fields of its event. Called by the driver."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import ray

from rljob_runtime.dock.stats import Traffic, flow_event

ROOM_TIMEOUT_SECONDS = 5.0


def dock_fields(
    moved: Sequence[Mapping[str, Traffic]], warehouses: Sequence[Any]
) -> dict[str, Any]:
    """Traffic of each state over all workers, and each warehouse's room.

    warehouses: their actors; one that restarts now is left out.
    """
    rooms = []
    for index, warehouse in enumerate(warehouses):
        with contextlib.suppress(ray.exceptions.RayError):
            room = ray.get(warehouse.room.remote(), timeout=ROOM_TIMEOUT_SECONDS)
            rooms.append({"index": index, **room})
    return {**flow_event(moved), "warehouses": rooms}
