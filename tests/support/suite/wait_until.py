"""Waits of tests for what another thread or process does: each has a bound and names what it waited for."""

import time
from collections.abc import Callable


def wait_until(what: str, holds: Callable[[], object], *, seconds: float = 60.0) -> None:
    """Return once `holds()` is true. Raises AssertionError that names `what` after so many seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds} s until {what}"
        time.sleep(0.01)
