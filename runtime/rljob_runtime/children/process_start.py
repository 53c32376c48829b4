"""The start time of a process, which distinguishes it from another with the same number. Called by `reaper`
and `hangs`."""

import psutil

TICK_SECONDS = 0.02
"""Two readings of one process's start differ by less: the system counts in hundredths of a second."""


def start_of(process: psutil.Process) -> float:
    """Return the start in seconds since the system's boot, which clock changes do not affect. Raises
    psutil.NoSuchProcess."""
    return process.create_time() - psutil.boot_time()


def is_same(process: psutil.Process, start: float) -> bool:
    """Return whether it is the process that started then."""
    return abs(start_of(process) - start) < TICK_SECONDS
