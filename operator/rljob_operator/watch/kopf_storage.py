"""What kopf would keep of each object between its handlers: nothing, since only events are used.

Its own storages copy every object four times an event, half of what the operator costs. Set by
`informers.configure`.
"""

from typing import Any

import kopf


class NothingCompared(kopf.DiffBaseStorage):
    """No last state to compare with."""

    def build(self, **_: Any) -> Any:
        """An object without anything worth comparing."""
        return {}

    def fetch(self, **_: Any) -> None:
        """No earlier state."""

    def store(self, **_: Any) -> None:
        """Keeps nothing."""


class NothingRemembered(kopf.ProgressStorage):
    """No handler goes on later."""

    def fetch(self, **_: Any) -> None:
        """No progress."""

    def store(self, **_: Any) -> None:
        """Keeps nothing."""

    def purge(self, **_: Any) -> None:
        """There is nothing to remove."""

    def touch(self, **_: Any) -> None:
        """Asks for no further event."""

    def clear(self, *, essence: Any) -> Any:
        """The object as it is."""
        return essence
