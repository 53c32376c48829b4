"""Where the operator lets a run look into a deadline of its own before it deletes the run's pods.

Made by `launch`, opened by `watching_hangs` while there are processes to be asked; the `status_server`
asks here.
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
"""The operator waits 15 s for all of it."""
REASON_CHARACTERS, WAITING_CHARACTERS = 300, 200
"""A condition has 1000 for them and what is said before."""


class Looked(Protocol):
    """`Hang`."""

    @property
    def folder(self) -> Path | None: ...
    @property
    def found(self) -> str: ...
    @property
    def waits(self) -> str: ...


@dataclass(slots=True, kw_only=True)
class StacksRequests:
    """Of one run. remote: where its records are copied. dump: as `Hangs.dump`; None while there is nobody
    to be asked."""

    remote: RemoteRun | None = None
    dump: Callable[[str, str], Looked] | None = None

    def ask(self, deadline: str, why: str) -> str:
        """Write everybody's stacks; what the run was doing and where they are, in a line."""
        dump = self.dump
        if dump is None:
            return f"it had no workers to be asked; its driver was in {stands() or 'nothing'}"
        hang = dump(deadline, why)
        said = [hang.found[:REASON_CHARACTERS], hang.waits[:WAITING_CHARACTERS]]
        return "; ".join(filter(None, [*said, self._place(hang.folder)]))

    def _place(self, folder: Path | None) -> str:
        if folder is None:
            return "its stacks could not be written"
        if self.remote is None:
            return f"stacks and dock: {folder}"
        place = f"{self.remote.uri}/{folder.parent.name}/{folder.name}"
        late = self._copied(self.remote, folder)
        return f"stacks and dock: {late or place}"

    def _copied(self, remote: RemoteRun, folder: Path) -> str:
        """Copy them beside the run's other records; what is to be said where that failed or is not over."""
        said = [f"{folder}, not copied within {COPY_SECONDS:g} s"]

        def copy() -> None:
            try:
                remote.put_hang(folder)
                said[0] = ""
                remote.put_hangs(folder.parents[1])  # earlier ones
            except StorageError as error:
                if said[0]:
                    said[0] = f"{folder}, not copied: {error}"[:WAITING_CHARACTERS]

        copying = threading.Thread(target=copy, name="hang-copy", daemon=True)
        copying.start()
        copying.join(COPY_SECONDS)
        return said[0]
