"""Errors on the wire: a server's refusal is raised again, as the same error, at its client."""

from rljob_runtime.dock.wire.messages import Failure
from rljob_runtime.errors import (
    DockError,
    DockFull,
    DockLost,
    DockRefused,
    DockStale,
    DockTimeout,
)

CODES: dict[type[DockError], str] = {
    DockTimeout: "timeout",
    DockFull: "full",
    DockLost: "lost",
    DockStale: "stale",
    DockRefused: "refused",
    DockError: "failed",
}
DAMAGED = "damaged"
"""A request came with other bits than were sent: it is sent again, and no error."""
ERRORS = {code: error for error, code in CODES.items()}


def failure_of(error: DockError) -> Failure:
    """The answer that tells of the error."""
    return Failure(code=CODES[type(error)], text=str(error))


def error_of(failure: Failure) -> DockError:
    """The error that such an answer tells of."""
    return ERRORS.get(failure.code, DockError)(failure.text)
