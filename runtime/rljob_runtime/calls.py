"""Wait for calls to actors, with a deadline, and learn of the first that fails at once."""

import time
from collections.abc import Sequence
from typing import Any

import ray

from rljob_runtime.errors import DeadlineError

START_DEADLINE_SECONDS = 600.0
RESULT_SECONDS = 60.0
"""For the result of a call that has ended: it is here already, or on a node that answers."""
MEET_SECONDS = 30.0
"""How long a process waits for the others of its group; all of them were alive a moment before."""


def answers(
    what: str, calls: Sequence[Any], *, seconds: float = START_DEADLINE_SECONDS
) -> list[Any]:
    """Results of the calls, in order. what: who was called, for the error.

    Raises DeadlineError at the deadline, and what a call raised as soon as it did.
    """
    deadline = time.monotonic() + seconds
    pending = list(calls)
    while pending:
        left = deadline - time.monotonic()
        done, pending = ray.wait(pending, timeout=max(left, 0))
        results(what, done)
        if pending and left <= 0:
            raise DeadlineError(
                f"{len(pending)} of {len(calls)} processes ({what}) did not answer within "
                f"{seconds:.0f} s",
                stage=what.replace(" ", "-"),
            )
    return results(what, calls)


def results(what: str, calls: Sequence[Any]) -> list[Any]:
    """Results of calls that have ended, in order. what: as for `answers`. Raises what a call raised, and
    DeadlineError where a result cannot be fetched."""
    try:
        return list(ray.get(list(calls), timeout=RESULT_SECONDS))
    except ray.exceptions.GetTimeoutError as error:
        raise DeadlineError(
            f"{len(calls)} calls ({what}) ended, but their results did not come within "
            f"{RESULT_SECONDS:.0f} s: the node that holds them is gone or not reached",
            stage=what.replace(" ", "-"),
        ) from error
