"""A run's folder that grows as a driver makes it grow, event by event."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from run_events import Event


class GrowingRun:
    """events: those that `write` has not written yet."""

    def __init__(self, folder: Path, events: Sequence[Event]) -> None:
        self.folder = folder
        self.file = folder / "events.jsonl"
        self.events = [*events]

    def write(self, number: int | None = None) -> None:
        """Append the next events; None: all."""
        count = len(self.events) if number is None else number
        self.append(b"".join(line_of(event) for event in self.events[:count]))
        del self.events[:count]

    def write_until(self, kind: str, step: int) -> None:
        """Append the events up to this one."""
        places = [i for i, e in enumerate(self.events) if e["kind"] == kind and e["step"] == step]
        self.write(places[0] + 1)

    def append(self, data: bytes) -> None:
        """Append bytes, whatever they are."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.file.open("ab") as file:
            file.write(data)

    def record(self, step: int, content: bytes) -> str:
        """Leave a trace of the step's update, and tell of it; its name."""
        name = f"profile/step-{step}/rank-0-update.json.gz"
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        told = {"step": step, "rank": 0, "state": "update", "path": name, "bytes": len(content)}
        self.append(line_of({"time": 1.0, "kind": "profile", "seconds": 0.5, **told}))
        return name

    def replace(self, events: Sequence[Event]) -> None:
        """Put another log in the place of this one."""
        draft = self.folder / "draft"
        draft.write_bytes(b"".join(line_of(event) for event in events))
        os.replace(draft, self.file)


def line_of(event: Event) -> bytes:
    """The event as its log has it."""
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
