"""`rljob watch` on the terminal: the display of `rljob run` for a run of another process."""

import time
from collections.abc import Callable

from rljob_api.spec.exit_codes import ExitCode
from rljob_runtime.errors import ConfigError
from rljob_runtime.record.event_types import Event
from rljob_runtime.report.display.display import Display
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.watch.runs import RunActivity, RunStatus, WatchedRun

DisplayOf = Callable[[RunHistory], Display]
"""Creates a display that silently takes up this history."""
EXIT_CODES = {
    "succeeded": ExitCode.DONE,
    "failed": ExitCode.FAILED,
    "interrupted": ExitCode.INTERRUPTED,
}
"""Exit codes of runs whose last event does not contain one."""


class TerminalWatch:
    """Shows one run on one terminal. patience_seconds: timeout for a run that has not started."""

    def __init__(
        self,
        run: WatchedRun,
        display_of: DisplayOf,
        *,
        patience_seconds: float,
        notify: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run = run
        self._display_of = display_of
        self._patience = patience_seconds
        self._notify = notify
        self._sleep, self._clock = sleep, clock
        self._activity = RunActivity()
        self._display: Display | None = None
        self._earlier, self._last = RunHistory(), list[Event]()

    def run_until_end(self) -> int:
        """Show the run until it ends, and return its exit code.

        Raises RljobError if it never starts, and KeyboardInterrupt; the terminal is restored in any case.
        """
        try:
            return self._run_until_end()
        finally:
            if self._display is not None:
                self._display.close()

    def _run_until_end(self) -> int:
        began, last_text = self._clock(), ""
        while True:
            self._show()
            status = self._run.status(self._activity, self._clock())
            if status.over:
                self._show()  # events written before the run ended
                return self._code(status)
            waited = self._clock() - began
            if not self._activity.last and waited > self._patience:
                raise ConfigError(
                    f"{self._run.label}: no run began within {self._patience:g} s "
                    f"({status.text}); --wait SECONDS waits longer"
                )
            if status.text and status.text != last_text and self._display is None:
                self._notify(status.text)
            last_text = status.text
            self._sleep(self._run.pause_seconds)

    def _show(self) -> None:
        more = True
        while more:
            news = self._run.news()
            self._activity.add(news)
            events, more = news.events, news.more
            if news.restarted:
                self._begin_anew()
            if self._display is None:
                events = self._take_up([*self._last, *events], more=more)
            if self._display is not None:
                for event in events:
                    self._display.on_event(event)

    def _take_up(self, events: list[Event], *, more: bool) -> list[Event]:
        """Add all events but the last to the initial history of the display, and create it once all are
        read."""
        self._earlier.take(events[:-1])
        self._last = events[-1:]
        if self._last and not more:
            self._display = self._display_of(self._earlier)
        return self._last

    def _begin_anew(self) -> None:
        if self._display is not None:
            self._display.close()
        self._display, self._earlier, self._last = None, RunHistory(), []

    def _code(self, status: RunStatus) -> int:
        finished = self._activity.finished
        if finished is None:
            self._notify(f"{self._run.label}: {status.text}")
            return status.code
        code = finished.exit_code
        return code if code is not None else EXIT_CODES.get(finished.status, 1)
