"""Lines over two axes as an SVG, side by side in panels. Called by what writes pictures into docs/."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

Point = tuple[float, float]
COLORS = ("#2f6db3", "#b9812b", "#3c8f5a", "#a8485f", "#6b5ca5", "#4c5b66")
HEIGHT, LEFT, TOP, RIGHT, BOTTOM, LEGEND = 320, 56, 44, 16, 52, 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes. lines: points by name; bands: (x, lowest, highest) by name, drawn paler."""

    title: str
    across: str
    lines: Mapping[str, Sequence[Point]]
    bands: Mapping[str, Sequence[tuple[float, float, float]]] = field(default_factory=dict)
    percent: bool = False
    from_zero: bool = False
    width: int = 400

    @property
    def right(self) -> float:
        """The greatest x."""
        return max(x for line in self.lines.values() for x, _ in line)

    @property
    def range(self) -> Point:
        """The least and the greatest y, with room."""
        heights = [y for line in self.lines.values() for _, y in line]
        heights += [y for band in self.bands.values() for _, *both in band for y in both]
        room = 0.06 * (max(heights) - min(heights) or 1)
        return (0.0 if self.from_zero else max(0.0, min(heights) - room)), max(heights) + room


def panels_svg(panels: Sequence[Panel], *, columns: int | None = None) -> str:
    """All panels in a row, or in rows of `columns` panels of one width, with one legend below them."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.lines))
    colors = dict(zip(names, COLORS, strict=False))
    columns = columns or len(panels)
    below = HEIGHT * -(-len(panels) // columns)
    width, height = sum(panel.width for panel in panels[:columns]), below + LEGEND
    parts = [
        f'<g transform="translate({number % columns * panel.width},{number // columns * HEIGHT})">\n'
        f"{_drawn(panel, colors)}\n</g>"
        for number, panel in enumerate(panels)
    ]
    for number, (name, color) in enumerate(colors.items()):
        x = LEFT + number * (width - LEFT) / len(colors)
        parts.append(
            f'<line x1="{x:.0f}" y1="{below + 8}" x2="{x + 22:.0f}" y2="{below + 8}" '
            f'stroke="{color}" stroke-width="3"/>'
            f'<text x="{x + 28:.0f}" y="{below + 13}" fill="#1b2733">{escape(name)}</text>'
        )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="13">\n'
        f'<rect width="{width}" height="{height}" fill="#fbfcfd"/>\n{body}\n</svg>\n'
    )


def _drawn(panel: Panel, colors: Mapping[str, str]) -> str:
    low, high = panel.range

    def place(x: float, y: float) -> str:
        across = LEFT + (panel.width - LEFT - RIGHT) * x / (panel.right or 1)
        return f"{across:.1f},{TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / (high - low):.1f}"

    parts = [
        f'<text x="{LEFT}" y="24" font-weight="600" fill="#1b2733">{escape(panel.title)}</text>',
        f'<text x="{(LEFT + panel.width - RIGHT) / 2:.0f}" y="{HEIGHT - 12}" text-anchor="middle" '
        f'fill="#44525f">{escape(panel.across)}</text>',
    ]
    for tick in ticks(low, high):
        y = float(place(0, tick).split(",")[1])
        said = f"{tick:.0%}" if panel.percent else f"{tick:g}"
        parts.append(
            f'<line x1="{LEFT}" y1="{y}" x2="{panel.width - RIGHT}" y2="{y}" stroke="#dde3ea"/>'
            f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end" fill="#44525f">{said}</text>'
        )
    for tick in ticks(0, panel.right):
        x = float(place(tick, low).split(",")[0])
        parts.append(
            f'<text x="{x}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="#44525f">{tick:g}</text>'
        )
    for name, band in panel.bands.items():
        outline = [place(x, top) for x, _, top in band]
        outline += [place(x, bottom) for x, bottom, _ in reversed(band)]
        parts.append(
            f'<polygon points="{" ".join(outline)}" fill="{colors[name]}" fill-opacity="0.13"/>'
        )
    for name, line in panel.lines.items():
        path = " ".join(place(x, y) for x, y in line)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colors[name]}" stroke-width="2.2"/>'
        )
    return "\n".join(parts)


def ticks(low: float, high: float, *, most: int = 6) -> list[float]:
    """Round values between the two, at most so many."""
    step = next(
        base * 10.0**power
        for power in range(-6, 13)
        for base in (1, 2, 5)
        if (high - low) / (base * 10.0**power) <= most
    )
    first = -(-low // step)
    return [round(step * (first + i), 9) for i in range(int((high - first * step) // step) + 1)]
