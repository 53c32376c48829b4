"""Errors on the wire: a server's refusal is raised again, as the same error, at its client."""

from rljob_runtime.dock.wire.frames import Fields
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
ERRORS = {code: error for error, code in CODES.items()}


def failure_fields(error: DockError) -> dict[str, str]:
    """The header of the answer that tells of the error."""
    return {"code": CODES[type(error)], "text": str(error)}


def error_of(fields: Fields) -> DockError:
    """The error that such a header tells of."""
    return ERRORS.get(fields.text("code"), DockError)(fields.text("text"))
