"""Wait for calls to workers with a deadline, and raise the first failure immediately."""

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED
from typing import Any

from rljob_runtime.errors import DeadlineError
from rljob_runtime.processes.clock import monotonic, wait
from rljob_runtime.processes.workers import Call

START_DEADLINE_SECONDS = 600.0


def answers(
    target: str, calls: Sequence[Call], *, seconds: float = START_DEADLINE_SECONDS
) -> list[Any]:
    """Return the results of the calls, in order. target: the name of the called processes, for the error.

    Raises DeadlineError at the deadline, and a call's own error as soon as it fails.
    """
    deadline = monotonic() + seconds
    pending = list(calls)
    while pending:
        left = deadline - monotonic()
        ended, pending = ended_of(pending, seconds=max(left, 0))
        results(ended)
        if pending and left <= 0:
            raise DeadlineError(
                f"{len(pending)} of {len(calls)} processes ({target}) did not answer within "
                f"{seconds:.0f} s",
                stage=target.replace(" ", "-"),
            )
    return results(calls)


def ended_of(
    calls: Sequence[Call],
    *,
    seconds: float = 0.0,
    until: str = FIRST_COMPLETED,
    groups: Sequence[Sequence[Call]] = (),
) -> tuple[list[Call], list[Call]]:
    """Return the calls that have ended and those that have not, each in order, after one has ended or
    the time has passed. until, groups: see `clock.wait`."""
    wait(calls, seconds=seconds, until=until, groups=groups)
    done = [call.done() for call in calls]
    return (
        [call for call, ended in zip(calls, done, strict=True) if ended],
        [call for call, ended in zip(calls, done, strict=True) if not ended],
    )


def results(calls: Sequence[Call]) -> list[Any]:
    """Return the results of calls that have ended, in order. Raises what a call raised."""
    return [call.result(timeout=0) for call in calls]
