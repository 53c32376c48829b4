"""The dock's figures of a complete run, for the report's tables. Pure."""

from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.totals import DockTotals, Table


def dock_tables(history: RunHistory) -> Table | None:
    """Return sums over the steps: work and waits of each state, traffic between states, dropped rows.

    The data paths, and whether rows have two copies, are those of the last step.
    """
    totals = history.dock_totals()
    if not totals.states and not totals.warehouses:
        return None
    return {
        "states": totals.states,
        "edges": _edges(totals),
        "warehouses": totals.warehouses,
        "data_paths": totals.data_paths,
        "dropped": list(totals.dropped.values()),
    }


def _edges(totals: DockTotals) -> list[Table]:
    seconds = totals.seconds
    return [
        {
            "from": ends[0],
            "to": ends[1],
            "rows": rows,
            "bytes": num_bytes,
            "rows_per_second": rows / seconds if seconds else None,
            "bytes_per_second": num_bytes / seconds if seconds else None,
        }
        for ends, (rows, num_bytes) in totals.edges.items()
    ]
