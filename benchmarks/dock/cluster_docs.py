"""What docs/benchmarks.md shows of `cluster.py` beside its figures: tables and a picture."""

from statistics import median
from typing import Any

from benchmarks.support.pictures import Panel, panels_svg
from benchmarks.support.results import figure

PICTURE = "images/dock-linearity.svg"


def cluster_parts(document: dict[str, Any]) -> list[str]:
    """The picture, dispatch times, bytes and the model."""
    return [
        f"![Dispatch time of a step by the number of nodes]({PICTURE})",
        _dispatch(document),
        _volumes(document["volumes"]),
        *_model(document["model"]),
    ]


def _dispatch(document: dict[str, Any]) -> str:
    rows = [
        "| S | layout | dispatch of a step, s | reads of another node's rows | processors busy |",
        "|---|---|---|---|---|",
    ]
    for row in document["linearity"]:
        seconds = row["seconds"]
        rows.append(
            f"| {row['nodes']} | {row['layout']} "
            f"| {figure(median(seconds), (min(seconds), max(seconds)))} "
            f"| {row['other_node']:.0%} | {row['busy']:.0%} |"
        )
    return "\n".join(rows)


def _volumes(volumes: list[dict[str, Any]]) -> str:
    rows = [
        "| rows of | rows a warehouse | held, MB | Eq. 1 | sent, MB | Eq. 4 | of it broadcast, MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in volumes:
        held, sent = ([count / 1e6 for count in row[what]] for what in ("held", "sent"))
        rows.append(
            f"| {row['shape']} | {row['rows']} "
            f"| {figure(median(held), (min(held), max(held)))} | {row['equation_1'] / 1e6:.4g} "
            f"| {figure(median(sent), (min(sent), max(sent)))} | {row['equation_4'] / 1e6:.4g} "
            f"| {row['notices'] / 1e6:.2g} |"
        )
    return "\n".join(rows)


def _model(model: dict[str, Any]) -> list[str]:
    rows = [
        "| | TCV (Eq. 2), GB | a warehouse's (Eq. 4), GB | one warehouse, s | the dock, s |",
        "|---|---|---|---|---|",
    ]
    rows += [
        f"| {row['shape']} | {row['total_gb']:,.1f} | {row['warehouse_gb']:,.2f} "
        f"| {row['central_seconds']:,.1f} | {row['dock_seconds']:,.2f} |"
        for row in model["table"]
    ]
    text = (
        "A model, not a measurement: a step takes a fixed time and its bytes over the busiest link, "
        f"here {model['fixed_seconds']:.2f} s and {model['efficiency']:.0%} of the link's rate. With "
        f"it, the paper's settings on {model['nodes']} nodes of 8 devices (384), "
        f"{model['controllers']} controllers and the {model['rate']:g} MB/s that it measured between "
        "servers:"
    )
    return [text, "\n".join(rows)]


def linearity_picture(document: dict[str, Any]) -> str:
    """Dispatch time by S, a line for each layout, as an SVG."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in document["linearity"]:
        lines.setdefault(row["layout"], []).append((row["nodes"], median(row["seconds"])))
    return panels_svg(
        [
            Panel(
                title="Dispatch of a step, s",
                across="nodes (S), 64 prompts each",
                lines=lines,
                from_zero=True,
                width=720,
            )
        ]
    )
