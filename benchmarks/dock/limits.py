"""What bounds dispatch at the paper's sizes: a link, a warehouse or a controller. A model, not a measurement.

Costs are what `metadata.py` and `cluster.py` measured, from their files: processor time a row of a
warehouse and of a controller, and the share of a link's rate that bytes get. On S nodes there are S
warehouses; each controller hears of all rows.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.dock.sample_flow import table1
from benchmarks.dock.sample_flow.model import busiest_bytes
from benchmarks.support.tables import table

MEASURED = Path(__file__).parents[1] / "measured"
NODES = (48, 384)
CONTROLLERS = 10
RATE = 300.0
"""MB/s between servers, as the paper measured."""
KNOWN = "a row, 32 in a message"
DONE = "a row that a state claims and acknowledges, 32 at a time"


def costs_of(metadata: Mapping[str, Any], cluster: Mapping[str, Any]) -> dict[str, float]:
    """Microseconds a row: of a warehouse and of a controller in a step; and the links' efficiency."""
    found = {figure["name"]: figure["value"] for figure in metadata["figures"]}
    warehouse, controller = (
        (found[f"processor time of {who}, {KNOWN}"], found[f"processor time of {who}, {DONE}"])
        for who in ("the warehouse", "a controller")
    )
    return {
        "warehouse": warehouse[0] + CONTROLLERS * warehouse[1],
        "controller": sum(controller),
        "efficiency": cluster["model"]["efficiency"],
    }


def limits(costs: Mapping[str, float]) -> list[dict[str, Any]]:
    """Seconds of a step that each of the three takes, by setting and S."""
    rows = []
    for flow in table1.TABLE1:
        samples = flow.global_batch_size * flow.samples_per_prompt
        for nodes in NODES:
            sent = busiest_bytes(flow, warehouses=nodes, controllers=CONTROLLERS)
            rows.append(
                {
                    "shape": table1.name(flow),
                    "rows": samples,
                    "nodes": nodes,
                    "link": sent / (costs["efficiency"] * 1e6 * RATE),
                    "warehouse": samples / nodes * costs["warehouse"] / 1e6,
                    "controller": samples * costs["controller"] / 1e6,
                }
            )
    return rows


def limits_parts(document: Mapping[str, Any]) -> list[str]:
    """What docs/benchmarks.md shows."""
    costs = document["costs"]
    heads = ["rows", "S", "a link, s", "a warehouse, s", "a controller, s", "the limit"]
    rows = []
    for row in document["rows"]:
        seconds = {who: row[who] for who in ("link", "warehouse", "controller")}
        rows.append(
            [
                row["shape"],
                f"{row['rows']:,}",
                str(row["nodes"]),
                *(f"{value:.3g}" for value in seconds.values()),
                max(seconds, key=lambda who: seconds[who]),
            ]
        )
    return [
        "A model, not a measurement. A row costs a warehouse "
        f"{costs['warehouse']:.1f} µs of processor time in a step of {CONTROLLERS} states, and each "
        f"controller {costs['controller']:.1f} µs; bytes get {costs['efficiency']:.0%} of a link's "
        f"{RATE:g} MB/s. All three work at the same time, so that the longest is what a step's dispatch "
        "takes at least:",
        table(heads, rows),
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    metadata, cluster = (
        json.loads((MEASURED / f"{name}.json").read_text())
        for name in ("dock_metadata", "dock_cluster")
    )
    costs = costs_of(metadata, cluster)
    document = {"costs": costs, "rows": limits(costs), "machine": metadata["machine"]}
    print("\n\n".join(limits_parts(document)))
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
