"""Make the pictures of the README from real runs: `scripts/pictures.py quickstart RUN`, `showcase RUN`.

`quickstart` replays a run's events into the live terminal (docs/images/terminal.svg) and photographs
its report in headless Chromium (docs/images/report.png); `showcase` draws the accuracy curve.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from rljob_runtime.record.event_types import EvaluationEvent, Event, RunFinishedEvent, StepEvent
from rljob_runtime.record.events import read_events
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.panels import Palette, screen

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH, HEIGHT = 108, 32
SHOWN_SHARE = 0.8
CHROMIUM = [
    "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--force-device-scale-factor=1", "--virtual-time-budget=8000",
]  # fmt: skip


def terminal(events: Sequence[Event]) -> None:
    """The live screen as it stood after four fifths of the run."""
    last = max(event.step for event in events if isinstance(event, StepEvent))
    shown = [event for event in events if getattr(event, "step", 0) <= last * SHOWN_SHARE]
    shown = [event for event in shown if not isinstance(event, RunFinishedEvent)]
    console = Console(record=True, width=WIDTH, height=HEIGHT, force_terminal=True, quiet=True)
    now = shown[-1].time
    console.quiet = False
    console.file = open("/dev/null", "w")  # noqa: SIM115 - only the recording is wanted
    history = RunHistory.of(shown)
    palette = Palette.for_console(console)
    console.print(screen(history, palette, time_s=now, width=WIDTH, height=HEIGHT))
    (IMAGES / "terminal.svg").write_text(console.export_svg(title="rljob run"))


def photograph(page: Path, picture: Path, *, width: int, height: int) -> None:
    """A page in headless Chromium as PNG."""
    with TemporaryDirectory() as profile:
        size = [f"--user-data-dir={profile}", f"--window-size={width},{height}"]
        command = [*CHROMIUM, *size, f"--screenshot={picture}", page.resolve().as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=120)


def curve(events: Sequence[Event]) -> str:
    """Held-out accuracy over the steps as SVG, with 95 % intervals."""
    points = [
        (event.step, event.accuracy, 1.96 * (event.stderr or 0.0))
        for event in events
        if isinstance(event, EvaluationEvent)
    ]
    last = points[-1][0]
    left, top, width, height = 70, 40, 600, 260

    def x(step: float) -> float:
        return left + width * step / last

    def y(accuracy: float) -> float:
        return top + height * (1 - accuracy)

    lines = [
        f'<line x1="{left}" x2="{left + width}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#d7dee6"/>'
        f'<text x="{left - 10}" y="{y(v) + 5:.1f}" text-anchor="end">{v:.0%}</text>'
        for v in (0, 0.25, 0.5, 0.75, 1)
    ]
    lines += [
        f'<line x1="{x(s):.1f}" x2="{x(s):.1f}" y1="{y(a - e):.1f}" y2="{y(a + e):.1f}" '
        'stroke="#2f6db3" stroke-width="2"/>'
        f'<circle cx="{x(s):.1f}" cy="{y(a):.1f}" r="4.5" fill="#2f6db3"/>'
        f'<text x="{x(s):.1f}" y="{y(a + e) - 8:.1f}" text-anchor="middle">{a:.1%}</text>'
        f'<text x="{x(s):.1f}" y="{top + height + 22}" text-anchor="middle">{s}</text>'
        for s, a, e in points
    ]
    path = " ".join(f"{x(s):.1f},{y(a):.1f}" for s, a, _ in points)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 710 350" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#44525f">'
        '<rect width="710" height="350" fill="#fbfcfd"/>'
        '<text x="70" y="22" font-weight="600" fill="#1b2733">Held-out accuracy over training steps, '
        "95 % interval</text>"
        f'{"".join(lines)}<polyline points="{path}" fill="none" stroke="#2f6db3" stroke-width="2"/>'
        "</svg>\n"
    )


def main() -> None:
    """Make the pictures of one run."""
    what, run = sys.argv[1], Path(sys.argv[2])
    events = read_events(run / "events.jsonl")
    if what == "quickstart":
        terminal(events)
        photograph(run / "report.html", IMAGES / "report.png", width=1400, height=1750)
    else:
        (IMAGES / "showcase.svg").write_text(curve(events))


if __name__ == "__main__":
    main()
