"""The live terminal: one calm screen, redrawn four times a second, then a summary that remains."""

import threading
import time
from collections.abc import Callable

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rljob_runtime.record.event_types import Event, RunFinishedEvent, StepEvent
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.display.panels import Palette, screen
from rljob_runtime.report.display.wording import headline, one_line, summary_rows

REFRESHES_PER_SECOND = 4
STATUS_STYLES = {"succeeded": "bold green", "failed": "bold red", "interrupted": "bold yellow"}


class LiveDisplay:
    """Draws the run's state on `console` until `run_finished`, then prints the result.

    report: returns the path of the report if there is one, called at the end. earlier: history before a
    resume. Output of others appears above the screen.
    """

    def __init__(
        self,
        console: Console,
        *,
        report: Callable[[], str | None],
        earlier: RunHistory | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._console = console
        self._report = report
        self._clock = clock
        self._palette = Palette.for_console(console)
        self._history = earlier or RunHistory()
        self._history.forget_details(before=self._history.step)
        self._live: Live | None = None
        self._lock = threading.Lock()  # the drawing thread reads what the driver writes

    def on_event(self, event: Event) -> None:
        """Add the event to the history; the next redraw shows it."""
        with self._lock:
            self._history.add(event)
            if isinstance(event, StepEvent):
                self._history.forget_details(before=event.step)
        if isinstance(event, RunFinishedEvent):
            self._stop()
        elif self._live is None and self._history.finished is None:
            self._live = Live(
                console=self._console,
                get_renderable=self._draw,
                refresh_per_second=REFRESHES_PER_SECOND,
                transient=True,
                vertical_overflow="crop",
            )
            self._live.start()

    def close(self) -> None:
        """Restore the terminal and print the summary."""
        self._stop()
        if self._history.finished is not None:
            self._console.print(summary(self._history, self._report(), self._palette))

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _draw(self) -> RenderableType:
        size = self._console.size
        try:
            with self._lock:
                return screen(
                    self._history,
                    self._palette,
                    time_s=self._clock(),
                    width=size.width,
                    height=size.height,
                )
        except Exception as error:  # a display never ends a run
            return Text(f"rljob: this run cannot be shown here ({error!r}); it goes on")


def summary(history: RunHistory, report: str | None, palette: Palette) -> RenderableType:
    """Render the text that remains on the terminal: result, reward, speed, paths, suggested commands."""
    finished = history.finished
    status = finished.status if finished else ""
    table = Table.grid(padding=(0, 2))
    table.add_column(style=palette.quiet, no_wrap=True)
    table.add_column(overflow="fold")
    title = Text(history.name, style="bold")
    title.append(f"  {headline(history)}", style=STATUS_STYLES.get(status, "bold"))
    if finished and finished.message:
        table.add_row("  reason", Text(one_line(finished.message)))
    rows = summary_rows(history) + ([("report", report)] if report else [])
    for label, text in rows:
        strong = "bold" if label in ("held-out accuracy", "gain") else ""
        table.add_row(f"  {label}", Text(text, style=strong))
    for i, hint in enumerate(history.hints):
        table.add_row("  try next" if i == 0 else "", Text(one_line(hint)))
    page = Table.grid()
    page.add_row("")
    page.add_row(title)
    page.add_row(table)
    page.add_row("")
    return page
