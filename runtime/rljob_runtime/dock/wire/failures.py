"""Errors on the wire: a server's refusal is raised again at its client, as the same error."""

from rljob_runtime.dock.wire.messages import FailureReply
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
"""Code for a request that arrived with other bits than were sent: it is sent again, and is no error."""
ERRORS = {code: error for error, code in CODES.items()}


def failure_of(error: DockError) -> FailureReply:
    """Return the answer that reports the error."""
    return FailureReply(code=CODES[type(error)], text=str(error))


def error_of(failure: FailureReply) -> DockError:
    """Return the error that the answer reports."""
    return ERRORS.get(failure.code, DockError)(failure.text)
