"""The transfer dock over several machines: linearity, bytes and rates, on network namespaces.

S nodes with links of one speed put 64 prompts each and read all rows as three states, with a warehouse
a node, with one for all, and with TransferQueue and a storage unit a node; bytes are counted on the
warehouses' links and held against Eq. 1 and 4 of MindSpeed RL (arXiv:2507.19017). Needs root and
iproute2; says so and ends where they are missing.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.dock.sample_flow import table1
from benchmarks.dock.sample_flow.cluster import Cluster, Servers, Step
from benchmarks.dock.sample_flow.dock_servers import DockServers
from benchmarks.dock.sample_flow.model import Model, busiest_bytes, fit
from benchmarks.dock.sample_flow.network import NoNetworks
from benchmarks.dock.sample_flow.queue_servers import QueueServers
from benchmarks.dock.sample_flow.wire import compare_with_sockets
from benchmarks.support.environment import QUEUE, make_environment
from benchmarks.support.figures import Figures
from rljob_api.model.volumes import GB, SampleFlow

NODES, QUICK_NODES, QUICK_QUEUE_NODES = (1, 2, 4, 8), (1, 2, 4), (2,)
PROMPTS_A_NODE, QUICK_PROMPTS, WARM_UP_PROMPTS = 64, 16, 8
LINK_RATE, QUICK_RATE = 10.0, 50.0
"""MB/s; slow enough that two processors keep up with eight nodes, see the column of what is busy."""
DOCK, CENTRAL = "rljob, a warehouse a node", "rljob, one warehouse"
PEER = "TransferQueue, a unit a node"
FLAT = 1.1
STATES_OF_STEP = 3
VOLUME_NODES, VOLUME_CONTROLLERS, VOLUME_BYTES = 4, 5, 48 << 20
PAPER_NODES, PAPER_CONTROLLERS = 48, 10
PAPER_RATE = 300.0
"""MB/s between the paper's servers, of 8 devices each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured. queue_nodes: sizes at which TransferQueue is. central_repetitions: of the one
    warehouse, whose steps are S times as long."""

    nodes: tuple[int, ...]
    queue_nodes: tuple[int, ...]
    prompts: int
    repetitions: int
    central_repetitions: int
    shapes: tuple[SampleFlow, ...]
    rate: float


def linearity(plan: Plan, folder: Path) -> dict[str, dict[int, list[Step]]]:
    """Steps by layout and S, after a small one that warms up; the layouts take turns at each S."""
    flow = table1.TABLE1[0]
    states = table1.states(flow, STATES_OF_STEP)
    programs = make_environment("transferqueue", QUEUE)
    steps: dict[str, dict[int, list[Step]]] = {DOCK: {}, CENTRAL: {}, PEER: {}}
    for nodes in plan.nodes:
        systems: dict[str, Servers] = {
            DOCK: DockServers(nodes, states),
            CENTRAL: DockServers(1, states),
        }
        if nodes in plan.queue_nodes:
            systems[PEER] = QueueServers(nodes, programs)
        for layout, servers in systems.items():
            cluster = Cluster(nodes, servers, states, megabytes_per_second=plan.rate, folder=folder)
            repetitions = plan.central_repetitions if layout == CENTRAL else plan.repetitions
            with cluster:
                cluster.step(table1.columns(flow), WARM_UP_PROMPTS)
                taken = [
                    cluster.step(table1.columns(flow), plan.prompts) for _ in range(repetitions)
                ]
            steps[layout][nodes] = taken
            seconds = median(step.seconds for step in taken)
            busy = max(step.busy for step in taken)
            print(f"S = {nodes}, {layout}: {seconds:.2f} s, processors {busy:.0%} busy", flush=True)
    return steps


def linearity_figures(figures: Figures, steps: dict[str, dict[int, list[Step]]]) -> list[Any]:
    """Dispatch times as rows of a table, and how they grow."""
    for layout, of in steps.items():
        least, most = min(of), max(of)
        if least == most:
            continue
        ratio = _seconds(of[most]) / _seconds(of[least])
        limit = FLAT if layout == DOCK else None
        figures.add(f"dispatch at S = {most} beside S = {least}, {layout}", ratio, "×", limit)
    most = max(steps[PEER])
    ratio = _seconds(steps[PEER][most]) / _seconds(steps[DOCK][most])
    figures.add(f"dispatch at S = {most}, {PEER}, beside the dock", ratio, "×")
    return [
        {
            "nodes": nodes,
            "layout": layout,
            "seconds": [step.seconds for step in taken],
            "put_seconds": median(step.put_seconds for step in taken),
            "other_node": median(step.other_node for step in taken),
            "busy": max(step.busy for step in taken),
        }
        for layout, of in steps.items()
        for nodes, taken in of.items()
    ]


def volumes(figures: Figures, plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """Bytes of each of Table 1's shapes beside Eq. 1 and Eq. 4, a warehouse."""
    found: list[dict[str, Any]] = []
    for shape in plan.shapes:
        each = int(GB * table1.reduced(shape, 1).stage_gb())
        rows = max(2, VOLUME_BYTES // each // VOLUME_NODES)
        flow = table1.reduced(shape, rows * VOLUME_NODES)
        states = table1.states(shape, VOLUME_CONTROLLERS)
        servers = DockServers(VOLUME_NODES, states)
        with Cluster(
            VOLUME_NODES, servers, states, megabytes_per_second=0, folder=folder
        ) as cluster:
            step = cluster.step(table1.columns(shape), rows)
        counts = {"warehouses": VOLUME_NODES, "controllers": VOLUME_CONTROLLERS}
        notices = sum(step.notice_bytes) / len(step.notice_bytes)
        found.append(
            {
                "shape": table1.name(shape),
                "rows": rows,
                "held": step.held_bytes,
                "equation_1": GB * flow.stage_gb() / VOLUME_NODES,
                "sent": [a + b for a, b in zip(step.notice_bytes, step.read_bytes, strict=True)],
                "equation_4": GB * flow.per_warehouse_gb(**counts),
                "notices": notices,
            }
        )
        print(f"{table1.name(shape)}: {rows} rows a node", flush=True)
    for what, equation in (("held", 1), ("sent", 4)):
        worst = max(
            abs(count / row[f"equation_{equation}"] - 1) for row in found for count in row[what]
        )
        figures.add(f"bytes {what} by a warehouse, off Eq. {equation} by", 100 * worst, "%", 5)
    return found


def model_of(
    figures: Figures, plan: Plan, steps: dict[str, dict[int, list[Step]]]
) -> dict[str, Any]:
    """Fit to all but the largest S, predict that one, then what the paper's settings would take."""
    largest = plan.nodes[-1]

    def bytes_of(layout: str, nodes: int) -> float:
        flow = table1.reduced(table1.TABLE1[0], plan.prompts * nodes)
        warehouses = 1 if layout == CENTRAL else nodes
        return busiest_bytes(flow, warehouses=warehouses, controllers=STATES_OF_STEP)

    points = [
        (bytes_of(layout, nodes), _seconds(taken))
        for layout in (DOCK, CENTRAL)
        for nodes, taken in steps[layout].items()
        if nodes != largest
    ]
    model = fit(points, megabytes_per_second=plan.rate)
    for layout in (DOCK, CENTRAL):
        said = model.seconds(bytes_of(layout, largest), megabytes_per_second=plan.rate)
        error = abs(said / _seconds(steps[layout][largest]) - 1)
        figures.add(f"model at S = {largest}, {layout}: off by", 100 * error, "%", 10)
    return {
        "fixed_seconds": model.fixed_seconds,
        "efficiency": model.efficiency,
        "nodes": PAPER_NODES,
        "controllers": PAPER_CONTROLLERS,
        "rate": PAPER_RATE,
        "table": [_paper_row(model, flow) for flow in table1.TABLE1],
    }


def _paper_row(model: Model, flow: SampleFlow) -> dict[str, Any]:
    each = flow.per_warehouse_gb(warehouses=PAPER_NODES, controllers=PAPER_CONTROLLERS)
    return {
        "shape": table1.name(flow),
        "total_gb": flow.total_gb(),
        "warehouse_gb": each,
        "central_seconds": model.seconds(GB * flow.total_gb(), megabytes_per_second=PAPER_RATE),
        "dock_seconds": model.seconds(GB * each, megabytes_per_second=PAPER_RATE),
    }


def _seconds(steps: Sequence[Step]) -> float:
    return median(step.seconds for step in steps)


def main() -> None:
    """Measure and report; ends well, and says why, where there can be no networks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="up to 4 nodes, a quarter of the rows")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--rate", type=float, help="of the links, MB/s")
    parser.add_argument("--repetitions", type=int, default=3)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # namespaces and Ray's nodes end too
    plan = Plan(
        nodes=QUICK_NODES if options.quick else NODES,
        queue_nodes=QUICK_QUEUE_NODES if options.quick else NODES,
        prompts=QUICK_PROMPTS if options.quick else PROMPTS_A_NODE,
        repetitions=options.repetitions,
        central_repetitions=2,
        shapes=table1.TABLE1[:1] if options.quick else table1.TABLE1,
        rate=options.rate or (QUICK_RATE if options.quick else LINK_RATE),
    )
    figures = Figures()
    try:
        with tempfile.TemporaryDirectory(prefix="rljob-bench-") as scratch:
            folder = Path(scratch)
            wire = compare_with_sockets(figures, quick=options.quick)
            steps = linearity(plan, folder)
            sections = {
                "wire": wire,
                "linearity": linearity_figures(figures, steps),
                "volumes": volumes(figures, plan, folder),
                "model": model_of(figures, plan, steps),
            }
    except NoNetworks as error:
        print(f"skipped: no networks can be made on this machine: {error}")
        return
    if options.json is not None:
        facts = {"link MB/s": int(plan.rate), "prompts a node": plan.prompts}
        packages = ["rljob", "numpy", "msgspec"]
        figures.write(options.json, packages=packages, facts=facts, **sections)


if __name__ == "__main__":
    main()
