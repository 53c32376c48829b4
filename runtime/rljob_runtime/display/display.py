"""The seam between a run and what shows it, and the choice between the two displays."""

from pathlib import Path
from typing import Protocol

from rich.console import Console

from rljob_runtime.display.plain import PlainDisplay
from rljob_runtime.display.terminal import LiveDisplay
from rljob_runtime.events import Event, read_events

REPORT_NAME = "report.html"


class Display(Protocol):
    """Shows a run while it goes on. Driven by events alone, so a file can be replayed."""

    def on_event(self, event: Event) -> None:
        """Take the next event."""

    def close(self) -> None:
        """Show what the run came to and give the terminal back; called once the report is there."""


def make_display(run_dir: Path, *, console: Console | None = None) -> Display:
    """A live display on a terminal, plain lines elsewhere.

    Earlier events of the folder (a resumed run) are taken up silently. NO_COLOR and TERM=dumb are
    honoured through rich.
    """
    console = console or Console()
    report = run_dir / REPORT_NAME

    def find_report() -> str | None:
        return str(report) if report.exists() else None

    events = run_dir / "events.jsonl"
    earlier = read_events(events) if events.exists() else []
    if not console.is_terminal or console.is_dumb_terminal:
        return PlainDisplay(console.file, report=find_report, earlier=earlier)
    return LiveDisplay(console, report=find_report, earlier=earlier)
