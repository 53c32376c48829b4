"""What docs/benchmarks.md shows of `dock_cluster.py` beside its figures: tables and a picture."""

from statistics import median
from typing import Any

from results import figure

PICTURE = "images/dock-linearity.svg"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 380, 64, 44, 24, 56
COLORS = ("#2f6db3", "#b9812b", "#7a4fa3")


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
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in document["linearity"]:
        lines.setdefault(row["layout"], []).append((row["nodes"], median(row["seconds"])))
    most_nodes = max(nodes for line in lines.values() for nodes, _ in line)
    highest = 1.1 * max(seconds for line in lines.values() for _, seconds in line)

    def place(nodes: float, seconds: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * nodes / most_nodes
        return round(across, 1), round(
            HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * seconds / highest, 1
        )

    parts = [*_axes(place, sorted({n for line in lines.values() for n, _ in line}), highest)]
    lowest = min(lines, key=lambda layout: lines[layout][-1][1])
    for color, (layout, line) in zip(COLORS, lines.items(), strict=True):
        points = [place(*point) for point in line]
        path = " ".join(f"{x},{y}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x}" cy="{y}" r="4" fill="{color}"/>' for x, y in points]
        x, y = points[-1]
        label = f"{layout}: {line[-1][1]:.2f} s"
        y += 22 if layout == lowest else -12
        parts.append(f'<text x="{x}" y="{y}" text-anchor="end" fill="{color}">{label}</text>')
    body = "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="14">\n'
        f'  <rect width="{WIDTH}" height="{HEIGHT}" fill="#fbfcfd"/>\n  {body}\n</svg>\n'
    )


def _axes(place: Any, nodes: list[int], highest: float) -> list[str]:
    (left, bottom), (right, top) = place(0, 0), place(nodes[-1], highest)
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if highest / s <= 8)
    ticks = [i * step for i in range(int(highest / step) + 1)]
    parts = [
        f'<text x="{LEFT}" y="26" font-weight="600" fill="#1b2733">Dispatch of a step, s</text>'
    ]
    for tick in ticks:
        y = place(0, tick)[1]
        parts.append(f'<line x1="{left}" y1="{y}" x2="{right}" y2="{y}" stroke="#dde3ea"/>')
        parts.append(
            f'<text x="{left - 8}" y="{y + 5}" text-anchor="end" fill="#44525f">{tick:g}</text>'
        )
    parts.append(f'<line x1="{left}" y1="{bottom}" x2="{left}" y2="{top}" stroke="#5b6b82"/>')
    for number in nodes:
        x = place(number, 0)[0]
        parts.append(
            f'<text x="{x}" y="{bottom + 20}" text-anchor="middle" fill="#44525f">{number}</text>'
        )
    middle = (left + right) / 2
    parts.append(
        f'<text x="{middle}" y="{bottom + 42}" text-anchor="middle" fill="#44525f">'
        "nodes (S), 64 prompts each</text>"
    )
    return parts
