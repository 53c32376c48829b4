"""Provide the time of a run, and waiting for calls: on this machine's clock, or on a simulation's.

The driver's decisions use `unix_seconds`, `monotonic`, `sleep` and `wait` of this module, never the
machine's. The clock is set once around the run (`on_clock`) and not passed to each call: a forgotten
argument would let a simulation wait for ever. Other threads use the machine's clock.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextvars import ContextVar
from typing import Protocol

from rljob_runtime.processes.workers import Call


class RunClock(Protocol):
    """The interface of a run's clock."""

    def unix_seconds(self) -> float:
        """Return the time in Unix seconds."""

    def monotonic(self) -> float:
        """Return seconds that never decrease."""

    def sleep(self, seconds: float) -> None:
        """Sleep for so many seconds."""

    def wait(
        self, calls: Sequence[Call], *, seconds: float, until: str, groups: Sequence[Sequence[Call]]
    ) -> None:
        """Wait for calls; see `wait` of this module."""


class MachineClock:
    """The clock of this machine."""

    def unix_seconds(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(
        self, calls: Sequence[Call], *, seconds: float, until: str, groups: Sequence[Sequence[Call]]
    ) -> None:
        futures.wait(calls, timeout=seconds, return_when=until)


_CLOCK: ContextVar[RunClock] = ContextVar("clock", default=MachineClock())  # noqa: B039  # has no state


@contextlib.contextmanager
def on_clock(clock: RunClock) -> Iterator[None]:
    """Use this clock for this thread's time within the context."""
    before = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(before)


def unix_seconds() -> float:
    """Return the run's time in Unix seconds."""
    return _CLOCK.get().unix_seconds()


def monotonic() -> float:
    """Return the run's time in seconds that never decrease."""
    return _CLOCK.get().monotonic()


def sleep(seconds: float) -> None:
    """Sleep for so many seconds of the run's time."""
    _CLOCK.get().sleep(seconds)


def wait(
    calls: Sequence[Call],
    *,
    seconds: float,
    until: str = futures.FIRST_COMPLETED,
    groups: Sequence[Sequence[Call]] = (),
) -> None:
    """Wait until calls have ended, or for `seconds`. until: see `concurrent.futures.wait`.

    groups: groups of the calls. If nothing can be done before all calls of one group have ended, or one
    has failed, a clock may delay its return until then.
    """
    _CLOCK.get().wait(calls, seconds=seconds, until=until, groups=groups)
