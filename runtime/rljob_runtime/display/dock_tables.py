"""The dock's figures of a whole run, as the report's tables show them. Pure."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from rljob_runtime.display.history import RunHistory, number
from rljob_runtime.events import Event

SUMMED = ("rows", "bytes_read", "bytes_written", "wait_seconds", "transfer_seconds")
Table = dict[str, Any]


def dock_tables(history: RunHistory) -> Table | None:
    """Sums over the steps: what each state did and waited for, what went from state to state, rows that
    were generated again. Of the last step: data paths, and whether rows are held twice."""
    events = [history.docks[step] for step in sorted(history.docks)]
    states, warehouses = _states(events), _warehouses(events)
    if not states and not warehouses:
        return None
    seconds = sum(number(e["seconds"]) for s, e in history.steps.items() if s in history.docks)
    return {
        "states": states,
        "edges": _edges(events, seconds),
        "warehouses": warehouses,
        "data_paths": next((e["data_paths"] for e in reversed(events) if "data_paths" in e), {}),
        "dropped": _dropped(events),
    }


def _states(events: Iterable[Event]) -> dict[str, Table]:
    states: dict[str, Table] = {}
    for event in events:
        for name, values in event.get("states", {}).items():
            sums = states.setdefault(name, {**dict.fromkeys(SUMMED, 0.0), "waits": {}})
            for key in SUMMED:
                sums[key] += number(values.get(key) or 0)
            for awaited, waited in values.get("waits", {}).items():
                sums["waits"][awaited] = sums["waits"].get(awaited, 0.0) + number(waited)
    return states


def _edges(events: Iterable[Event], seconds: float) -> list[Table]:
    rows: Counter[tuple[str, str]] = Counter()
    num_bytes: Counter[tuple[str, str]] = Counter()
    for event in events:
        for edge in event.get("edges", []):
            ends = (edge["from"], edge["to"])
            rows[ends] += edge["rows"]
            num_bytes[ends] += edge["bytes"]
    return [
        {
            "from": ends[0],
            "to": ends[1],
            "rows": rows[ends],
            "bytes": num_bytes[ends],
            "rows_per_second": rows[ends] / seconds if seconds else None,
            "bytes_per_second": num_bytes[ends] / seconds if seconds else None,
        }
        for ends in rows
    ]


def _warehouses(events: Iterable[Event]) -> dict[str, Table]:
    """replicated: at the last step that tells; steps_alone: ends of steps at which it was not."""
    warehouses: dict[str, Table] = {}
    for event in events:
        for told in event.get("warehouses", []):
            known = warehouses.setdefault(str(told.get("index", 0)), {"steps_alone": 0})
            for key in ("peak_bytes", "capacity_bytes", "times_alone"):
                known[key] = max(known.get(key, 0.0), number(told.get(key, 0)))
            if "replicated" in told:
                known["replicated"] = told["replicated"]
                known["steps_alone"] += not told["replicated"]
    return warehouses


def _dropped(events: Iterable[Event]) -> list[Table]:
    """By reason: rows that were dropped and generated again, and in which steps."""
    found: dict[str, Table] = {}
    for event in events:
        for reason, rows in event.get("dropped", {}).items():
            entry = found.setdefault(reason, {"reason": reason, "rows": 0, "steps": []})
            entry["rows"] += rows
            entry["steps"].append(event["step"])
    return list(found.values())
