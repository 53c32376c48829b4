"""An S3 server, and local checkpoints to copy to it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rljob_runtime.record.checkpoint import CheckpointStore, RunState

SECRET = "the-secret-key-of-this-test"
KEYS = {
    "AWS_ACCESS_KEY_ID": "the-key-of-this-test",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_DEFAULT_REGION": "us-east-1",
}


def save(store: CheckpointStore, step: int, then: Callable[[Path], None] = lambda _: None) -> Path:
    """A checkpoint whose files say its step. then: what is done with its draft."""
    draft = store.begin(step)
    (draft / "model").mkdir()
    (draft / "model" / "model.safetensors").write_bytes(b"weights of %d" % step)
    (draft / "optimizer.pt").write_bytes(b"moments of %d" % step)
    then(draft)
    state = RunState(step=step, seed=0, weight_version=step, dock_rows=0, spec_digest="d")
    return store.commit(state)


def contents(folder: Path) -> dict[str, bytes]:
    """The files within, by name."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in files}


@dataclass(slots=True)
class Gate:
    """A file system whose uploads wait while it is shut, and fail while `fault` is set."""

    fs: Any
    opened: threading.Event = field(default_factory=threading.Event)
    fault: Callable[[str], bool] = lambda path: False
    seen: list[str] = field(default_factory=list)

    def put_file(self, source: str, target: str, **options: Any) -> None:
        """As the file system's own, where the gate lets it."""
        self.seen.append(target)
        assert self.opened.wait(20), "the gate stayed shut"
        if self.fault(target):
            raise ConnectionError("the line is dead")
        self.fs.put_file(source, target, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fs, name)
