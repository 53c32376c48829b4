"""The interface between a run and its display, and the choice between the two displays."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from rich.console import Console

from rljob_runtime.record.event_types import Event
from rljob_runtime.report.display.console import TerminalConsole
from rljob_runtime.report.display.history import TAIL_BYTES, RunHistory
from rljob_runtime.report.display.plain import PlainDisplay
from rljob_runtime.report.display.terminal import LiveDisplay

REPORT_NAME = "report.html"


class Display(Protocol):
    """Shows a running run. Driven by events alone, so that a file can be replayed."""

    def on_event(self, event: Event) -> None:
        """Update the display with the next event."""

    def close(self) -> None:
        """Show the result of the run and restore the terminal; called once the report exists."""


def make_display(run_dir: Path, *, console: Console | None = None) -> Display:
    """Create the display of a run in this process. Earlier events of a resumed run are not shown again."""
    report = run_dir / REPORT_NAME
    events = run_dir / "events.jsonl"
    return display_after(
        RunHistory.read(events, tail_bytes=TAIL_BYTES) if events.exists() else RunHistory(),
        report=lambda: str(report) if report.exists() else None,
        console=console,
    )


def display_after(
    earlier: RunHistory, *, report: Callable[[], str | None], console: Console | None = None
) -> Display:
    """Create a live display on a terminal, and plain lines elsewhere.

    rich honours NO_COLOR and TERM=dumb. earlier: history that is not shown again.
    """
    console = console or TerminalConsole()
    if not console.is_terminal or console.is_dumb_terminal:
        return PlainDisplay(console.file, report=report, earlier=earlier)
    return LiveDisplay(console, report=report, earlier=earlier)
