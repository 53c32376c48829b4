"""What docs/benchmarks.md shows of a reshard beside its figures: tables of memory, a picture of peaks."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.reshard.paper import paper_table

PICTURE = "images/reshard-peaks.svg"
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 720, 360, 72, 48, 24, 48
MIB, GIB = 2**20, 2**30
COLORS = {"allgather": "#b9812b", "allgather-swap": "#2f6db3"}


def reshard_parts(document: Mapping[str, Any]) -> list[str]:
    """The picture, R by layout pair, and the paper's models."""
    return [
        f"![Bytes of a device over a reshard, by strategy]({PICTURE})",
        "Update weights that all devices still hold while they generate, MiB: what the layouts say, and what "
        "the ledgers of all ranks say under either strategy; beside them R of Eq. 3, an estimate.",
        _pairs(document["pairs"]),
        "The paper's models by plan, GB of 1024³ bytes:",
        paper_table(document["paper"]),
    ]


def _pairs(pairs: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            pair["pair"],
            *(f"{pair[side] / MIB:.2f}" for side in ("equation", "planned", "allgather")),
            f"{pair['allgather-swap']:g}",
        ]
        for pair in pairs
    ]
    heads = [
        "layouts",
        "R (Eq. 3)",
        "planned",
        "`allgather`, held",
        "`allgather-swap`, held, bytes",
    ]
    return _table(heads, rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def peaks_picture(document: Mapping[str, Any]) -> str:
    """Bytes of device 0 by event, a line for each strategy, as an SVG: the paper's Fig. 10, ours and its
    baseline."""
    lines = {
        strategy: [sum(kinds.values()) / MIB for _, kinds in trace]
        for strategy, trace in document["traces"].items()
    }
    highest = 1.1 * max(max(line) for line in lines.values())
    parts = [
        f'<text x="{LEFT}" y="26" font-weight="600" fill="#1b2733">Bytes of a device while it reshards, '
        "TP4 → TP2 DP2, MiB</text>",
        *_axis(highest),
    ]
    for strategy, line in lines.items():
        points = [
            (
                round(LEFT + (WIDTH - LEFT - RIGHT) * place / max(1, len(line) - 1), 1),
                round(_height(size, highest), 1),
            )
            for place, size in enumerate(line)
        ]
        path = " ".join(f"{x},{y}" for x, y in points)
        color = COLORS[strategy]
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2.5"/>')
        peak = line.index(max(line))
        x = min(max(points[peak][0], LEFT + 130), WIDTH - RIGHT - 130)
        parts.append(
            f'<text x="{x}" y="{points[peak][1] - 10}" text-anchor="middle" fill="{color}">'
            f"{strategy}: peak {max(line):,.0f}, at the end {line[-1]:,.0f}</text>"
        )
    body = "\n  ".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="system-ui, sans-serif" font-size="14">\n'
        f'  <rect width="{WIDTH}" height="{HEIGHT}" fill="#fbfcfd"/>\n  {body}\n</svg>\n'
    )


def _height(size: float, highest: float) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * size / highest


def _axis(highest: float) -> list[str]:
    step = next(size for size in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if highest / size <= 8)
    parts = []
    for tick in range(0, int(highest) + 1, step):
        y = round(_height(tick, highest), 1)
        parts += [
            f'<line x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="#dde3ea"/>',
            f'<text x="{LEFT - 8}" y="{y + 5}" text-anchor="end" fill="#44525f">{tick}</text>',
        ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 14}" text-anchor="middle" fill="#44525f">'
        "from the first bucket to the last, by what is allocated</text>"
    )
    return parts
