"""`rljob watch` on the terminal: what `rljob run` shows, of a run that somebody else started."""

import time
from collections.abc import Callable

from rljob_api.spec.exit_codes import ExitCode
from rljob_runtime.errors import ConfigError
from rljob_runtime.record.event_types import Event
from rljob_runtime.report.display.display import Display
from rljob_runtime.report.display.history import RunHistory
from rljob_runtime.report.watch.runs import Pulse, Standing, WatchedRun

DisplayOf = Callable[[RunHistory], Display]
"""A display that has taken up this history silently."""
EXIT_CODES = {
    "succeeded": ExitCode.DONE,
    "failed": ExitCode.FAILED,
    "interrupted": ExitCode.INTERRUPTED,
}
"""Of a run whose last event does not tell its own."""


class Watch:
    """One run on one terminal. patience_seconds: how long a run that has not begun is waited for."""

    def __init__(
        self,
        run: WatchedRun,
        display_of: DisplayOf,
        *,
        patience_seconds: float,
        tell: Callable[[str], None],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run = run
        self._display_of = display_of
        self._patience = patience_seconds
        self._tell = tell
        self._sleep, self._clock = sleep, clock
        self._pulse = Pulse()
        self._display: Display | None = None
        self._earlier, self._last = RunHistory(), list[Event]()

    def until_the_end(self) -> int:
        """Show the run until it has ended; its exit code. Raises RljobError where it never begins,
        KeyboardInterrupt; the terminal is given back in any case."""
        try:
            return self._until_the_end()
        finally:
            if self._display is not None:
                self._display.close()

    def _until_the_end(self) -> int:
        began, told = self._clock(), ""
        while True:
            self._show()
            standing = self._run.standing(self._pulse, self._clock())
            if standing.over:
                self._show()  # what was written before it ended
                return self._code(standing)
            waited = self._clock() - began
            if not self._pulse.last and waited > self._patience:
                raise ConfigError(
                    f"{self._run.place}: no run began within {self._patience:g} s "
                    f"({standing.text}); --wait SECONDS waits longer"
                )
            if standing.text and standing.text != told and self._display is None:
                self._tell(standing.text)
            told = standing.text
            self._sleep(self._run.pause_seconds)

    def _show(self) -> None:
        more = True
        while more:
            news = self._run.news()
            self._pulse.add(news)
            events, more = news.events, news.more
            if news.afresh:
                self._begin_anew()
            if self._display is None:
                events = self._take_up([*self._last, *events], more=more)
            if self._display is not None:
                for event in events:
                    self._display.on_event(event)

    def _take_up(self, events: list[Event], *, more: bool) -> list[Event]:
        """All but the last event go into the history that the display begins with, once all are there."""
        self._earlier.take(events[:-1])
        self._last = events[-1:]
        if self._last and not more:
            self._display = self._display_of(self._earlier)
        return self._last

    def _begin_anew(self) -> None:
        if self._display is not None:
            self._display.close()
        self._display, self._earlier, self._last = None, RunHistory(), []

    def _code(self, standing: Standing) -> int:
        finished = self._pulse.finished
        if finished is None:
            self._tell(f"{self._run.place}: {standing.text}")
            return standing.code
        code = finished.exit_code
        return code if code is not None else EXIT_CODES.get(finished.status, 1)
