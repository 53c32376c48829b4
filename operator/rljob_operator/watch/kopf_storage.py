"""Storages of kopf that store nothing per object, since only events are used.

kopf's own storages copy every object four times per event, half of the operator's cost. Set by
`informers.configure`.
"""

from typing import Any

import kopf


class NothingCompared(kopf.DiffBaseStorage):
    """Stores no last state to compare with."""

    def build(self, **_: Any) -> Any:
        """Return an object without anything to compare."""
        return {}

    def fetch(self, **_: Any) -> None:
        """Return no earlier state."""

    def store(self, **_: Any) -> None:
        """Store nothing for the object."""


class NothingRemembered(kopf.ProgressStorage):
    """Stores no progress, since no handler continues later."""

    def fetch(self, **_: Any) -> None:
        """Return no progress of handlers."""

    def store(self, **_: Any) -> None:
        """Store nothing for the handler."""

    def purge(self, **_: Any) -> None:
        """Remove nothing, since nothing is stored."""

    def touch(self, **_: Any) -> None:
        """Request no further event for the object."""

    def clear(self, *, essence: Any) -> Any:
        """Return the object unchanged."""
        return essence
