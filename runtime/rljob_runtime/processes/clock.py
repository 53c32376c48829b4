"""The time of a run, and how it passes while calls are waited for: this machine's, or a simulation's.

What the driver decides by asks `unix_seconds`, `monotonic`, `sleep` and `wait` here, and never the machine.
Which clock they ask is told around the whole run (`on_clock`) and not in each call: a wait that was forgotten
would let a simulation stand still, so that there is to be nothing to forget. Other threads have the
machine's.
"""

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextvars import ContextVar
from typing import Protocol

from rljob_runtime.processes.workers import Call


class Clock(Protocol):
    """What time is, for one run."""

    def unix_seconds(self) -> float:
        """Unix seconds."""

    def monotonic(self) -> float:
        """Seconds that never go back."""

    def sleep(self, seconds: float) -> None:
        """Until so many have passed."""

    def wait(
        self, calls: Sequence[Call], *, seconds: float, until: str, groups: Sequence[Sequence[Call]]
    ) -> None:
        """As `wait` of this module."""


class MachineClock:
    """This machine's."""

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


_CLOCK: ContextVar[Clock] = ContextVar("clock", default=MachineClock())  # noqa: B039  # has no state


@contextlib.contextmanager
def on_clock(clock: Clock) -> Iterator[None]:
    """Within, this thread's time is the clock's."""
    before = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(before)


def unix_seconds() -> float:
    """Unix seconds."""
    return _CLOCK.get().unix_seconds()


def monotonic() -> float:
    """Seconds that never go back."""
    return _CLOCK.get().monotonic()


def sleep(seconds: float) -> None:
    """Until so many have passed."""
    _CLOCK.get().sleep(seconds)


def wait(
    calls: Sequence[Call],
    *,
    seconds: float,
    until: str = futures.FIRST_COMPLETED,
    groups: Sequence[Sequence[Call]] = (),
) -> None:
    """Until calls have ended, or for so long. until: as of `concurrent.futures.wait`. groups: of the calls;
    where nothing is to be done before all of one have ended, or one has failed, a clock may say no earlier
    that some have."""
    _CLOCK.get().wait(calls, seconds=seconds, until=until, groups=groups)
