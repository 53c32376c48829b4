"""Requests for stacks: the operator lets a run investigate a deadline before it deletes the run's pods.

`launch` creates it, and `watching_hangs` opens it while there are processes to ask. The `status_server` calls
it.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rljob_runtime.errors import StorageError
from rljob_runtime.processes.hangs.stacks import stands
from rljob_runtime.record.remote import RemoteRun

COPY_SECONDS = 8.0
"""Time for the copy; the operator waits 15 s for the complete answer."""
REASON_CHARACTERS, WAITING_CHARACTERS = 300, 200
"""Limits of the texts: a condition has 1000 characters for them and the text before them."""


class HangReport(Protocol):
    """An investigated hang, as `Hang`."""

    @property
    def folder(self) -> Path | None:
        """Return the folder with the stacks, or None if it could not be written."""
        ...

    @property
    def missing_text(self) -> str:
        """Describe which processes are missing, for the answer to the operator."""
        ...

    @property
    def waits(self) -> str:
        """Describe the first process that waits, and what it waits for; "" if none does."""
        ...


@dataclass(slots=True, kw_only=True)
class StacksRequests:
    """Requests for stacks of one run. remote: where its records are copied. dump: as `Hangs.dump`; None while
    there are no processes to ask."""

    remote: RemoteRun | None = None
    dump: Callable[[str, str], HangReport] | None = None

    def ask(self, deadline: str, reason: str) -> str:
        """Write the stacks of all processes. Returns in one line what the run was doing and where they
        are."""
        dump = self.dump
        if dump is None:
            return f"it had no workers to be asked; its driver was in {stands() or 'nothing'}"
        hang = dump(deadline, reason)
        parts = [hang.missing_text[:REASON_CHARACTERS], hang.waits[:WAITING_CHARACTERS]]
        return "; ".join(filter(None, [*parts, self._location(hang.folder)]))

    def _location(self, folder: Path | None) -> str:
        if folder is None:
            return "its stacks could not be written"
        if self.remote is None:
            return f"stacks and dock: {folder}"
        location = f"{self.remote.uri}/{folder.parent.name}/{folder.name}"
        failure = self._copy(self.remote, folder)
        return f"stacks and dock: {failure or location}"

    def _copy(self, remote: RemoteRun, folder: Path) -> str:
        """Copy the folder to the run's other records. Returns a message if that failed or took too long, else
        ""."""
        message = [f"{folder}, not copied within {COPY_SECONDS:g} s"]

        def copy() -> None:
            try:
                remote.put_hang(folder)
                message[0] = ""
                remote.put_hangs(folder.parents[1])  # earlier ones
            except StorageError as error:
                if message[0]:
                    message[0] = f"{folder}, not copied: {error}"[:WAITING_CHARACTERS]

        copying = threading.Thread(target=copy, name="hang-copy", daemon=True)
        copying.start()
        copying.join(COPY_SECONDS)
        return message[0]
