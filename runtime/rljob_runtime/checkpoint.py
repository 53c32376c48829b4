"""Checkpoints of a run: `checkpoints/step-000020/` with the model, the optimizer and the position.

The model is a Hugging Face directory. A checkpoint appears by one rename, so that it is either whole
or absent. Written by update rank 0 through the driver; read on `--resume`.
"""

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from rljob_runtime.errors import CheckpointError

STATE_FILE = "state.json"
MODEL_FOLDER = "model"
OPTIMIZER_FILE = "optimizer.pt"
FOLDER_PATTERN = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands after `step` steps.

    Everything random derives from (seed, step), and data order from the same, so that these two are
    the position of the data and of the random numbers. The dock is empty between steps; dock_rows
    says so. weight_version: version of the weights, one more for each optimizer step.
    spec_digest: digest of the fields that a resumed run must share.
    """

    step: int
    seed: int
    weight_version: int
    dock_rows: int
    spec_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStore:
    """The checkpoints of one run folder; keeps the last `keep`."""

    folder: Path
    keep: int

    def path(self, step: int) -> Path:
        """Final place of a step's checkpoint."""
        return self.folder / f"step-{step:06d}"

    def begin(self, step: int) -> Path:
        """An empty folder to write into, invisible to `latest` until `commit`."""
        draft = self.folder / f".draft-step-{step:06d}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        return draft

    def commit(self, state: RunState) -> Path:
        """Make the draft of the state's step the newest checkpoint and drop the oldest."""
        draft = self.folder / f".draft-step-{state.step:06d}"
        (draft / STATE_FILE).write_text(json.dumps(asdict(state), indent=2) + "\n")
        for file in draft.rglob("*"):
            if file.is_file():
                _sync(file)
        final = self.path(state.step)
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
        _sync(self.folder)
        for step in sorted(self._steps())[: -self.keep]:
            shutil.rmtree(self.path(step), ignore_errors=True)
        return final

    def latest(self) -> Path | None:
        """The newest checkpoint, or None."""
        steps = self._steps()
        return self.path(max(steps)) if steps else None

    def _steps(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        found = (FOLDER_PATTERN.fullmatch(entry.name) for entry in self.folder.iterdir())
        return [int(match.group(1)) for match in found if match]


def read_state(checkpoint: Path) -> RunState:
    """The state of a checkpoint. Raises CheckpointError when it is missing or unreadable."""
    file = checkpoint / STATE_FILE
    try:
        return RunState(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{file}: cannot be read ({error}); remove {checkpoint} to resume from the one before"
        ) from error


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
