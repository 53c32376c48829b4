"""When a process started, which tells another of its number from it. Called by `reaper` and `hangs`."""

import psutil

TICK_SECONDS = 0.02
"""Two starts of one process differ by less: the system counts them in hundredths."""


def start_of(process: psutil.Process) -> float:
    """Seconds from the system's boot, which no change of the clock moves. Raises psutil.NoSuchProcess."""
    return process.create_time() - psutil.boot_time()


def is_same(process: psutil.Process, start: float) -> bool:
    """Whether it is the process that started then."""
    return abs(start_of(process) - start) < TICK_SECONDS
