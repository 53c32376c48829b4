"""Checkpoints of a run: `checkpoints/step-000020/` with the model, the optimizer and the position.

The model is a Hugging Face directory, whole. A checkpoint appears by one rename and goes by one, so that
it is either whole or absent. Written by the update ranks through the driver; read on `--resume`.
"""

import json
import os
import re
import shutil
from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from pydantic import ConfigDict, TypeAdapter

from rljob_api.spec.json_text import Count, content_of
from rljob_api.spec.messages import fault_of
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.errors import CheckpointError
from rljob_runtime.prompts.schedule import PromptState
from rljob_runtime.record.checksums import gather_sums

STATE_FILE = "state.json"
MODEL_FOLDER = "model"
CRITIC_FOLDER = "critic"
FOLDER_PATTERN = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run stands after `step` steps.

    Everything random derives from (seed, step), and data order from the same, so that these two are
    the position of the data and of the random numbers. A checkpoint holds no rows of the dock;
    dock_rows says so. weight_version: version of the weights, which is the number of steps that made them.
    spec_digest: digest of the fields that a resumed run must share; course_digest: of those that it must
    share when its devices or layouts are others. degrees: of the update layout, which the
    optimizer's state is cut by; empty for one that is not. Of a partial rollout, prompts by their positions
    in the training stream: first_new_prompt, the first that was never begun, and open_prompts, those that
    were begun and not trained on; a resumed run begins them anew. rollbacks, and skipped_steps whose prompts
    they left behind (`alarm_actions`). difficulty: what a difficulty filter knows of prompts (`difficulty`);
    first_new_prompt then is the first that it has not looked at. chain: of the step's digest (`digests`).
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    step: Count
    seed: int
    weight_version: Count
    dock_rows: Count
    spec_digest: str
    degrees: str = ""
    course_digest: str = ""
    first_new_prompt: Count = 0
    open_prompts: list[Count] = field(default_factory=list)
    rollbacks: Count = 0
    skipped_steps: Count = 0
    difficulty: list[list[int]] = field(default_factory=list)
    chain: str = ""

    @property
    def prompts(self) -> PromptState:
        """Of its schedule."""
        return PromptState(
            first_new_prompt=self.first_new_prompt,
            open_prompts=self.open_prompts,
            difficulty=self.difficulty,
        )


STATE = TypeAdapter(RunState)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStore:
    """The checkpoints of one run folder; keeps the last `keep`. held: steps that are being copied
    and therefore stay. best: the step that stays for its evaluation."""

    folder: Path
    keep: int
    held: set[int] = field(default_factory=set)
    best: set[int] = field(default_factory=set)

    def path(self, step: int) -> Path:
        """Final place of a step's checkpoint."""
        return self.folder / f"step-{step:06d}"

    def begin(self, step: int) -> Path:
        """An empty folder to write into, invisible to `latest` until `commit`."""
        draft = self._draft(step)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        return draft

    def commit(self, state: RunState) -> Path:
        """Complete the draft of the state's step and `publish` it."""
        state_file = self._draft(state.step) / STATE_FILE
        state_file.write_text(json.dumps(asdict(state), indent=2) + "\n")
        gather_sums(self._draft(state.step), [STATE_FILE])
        return self.publish(state.step)

    def publish(self, step: int) -> Path:
        """Make a complete draft the newest checkpoint and drop the oldest."""
        draft = self._draft(step)
        for file in draft.rglob("*"):
            if file.is_file():
                _sync(file)
        final, replaced = self.path(step), self._replaced(step)
        if final.exists():
            final.rename(replaced)
        draft.rename(final)
        _sync(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)
        self.drop_old()
        return final

    def recover(self) -> None:
        """Tidy up after a process that died here; called before the folder is used.

        A checkpoint that was just being replaced is there again; rests of others go.
        """
        for step, replaced in self._named(".replaced-"):
            if not self.path(step).exists():
                replaced.rename(self.path(step))
        for kind in (".replaced-", ".dropped-", ".draft-"):
            for _, rest in self._named(kind):
                shutil.rmtree(rest, ignore_errors=True)

    def set_aside(self, step: int) -> Path:
        """Keep a checkpoint that is damaged where no run goes on from it; its new place."""
        aside = self.folder / f"damaged-step-{step:06d}"
        shutil.rmtree(aside, ignore_errors=True)
        self.path(step).rename(aside)
        return aside

    def drop_old(self) -> None:
        """Drop all but the last `keep`, the best, and those that are held."""
        for step in sorted(self.steps())[: -self.keep]:
            if step not in self.held | self.best:
                self._drop(step)

    def drop_after(self, step: int) -> None:
        """Drop the checkpoints of later steps, the newest first."""
        for later in sorted((s for s in self.steps() if s > step), reverse=True):
            self._drop(later)

    def latest(self) -> Path | None:
        """The newest checkpoint, or None."""
        step = self.last_step()
        return None if step is None else self.path(step)

    def last_step(self, *, before: int | None = None) -> int | None:
        """The newest checkpoint's step, or None; before: of those of earlier steps."""
        return max((s for s in self.steps() if before is None or s < before), default=None)

    def _drop(self, step: int) -> None:
        dropped = self.folder / f".dropped-step-{step:06d}"
        self.path(step).rename(dropped)
        shutil.rmtree(dropped, ignore_errors=True)

    def _draft(self, step: int) -> Path:
        return self.folder / f".draft-step-{step:06d}"

    def _replaced(self, step: int) -> Path:
        return self.folder / f".replaced-step-{step:06d}"

    def steps(self) -> list[int]:
        """Of all checkpoints that are whole, in any order."""
        return [step for step, _ in self._named("")]

    def _named(self, prefix: str) -> list[tuple[int, Path]]:
        """The folders called so, by the step that follows."""
        if not self.folder.is_dir():
            return []
        found = [
            (step_of(path.name.removeprefix(prefix)), path)
            for path in self.folder.iterdir()
            if path.name.startswith(prefix)
        ]
        return [(step, path) for step, path in found if step is not None]


def optimizer_file(rank: int, ranks: int) -> str:
    """Name of the file with an update rank's optimizer state. ranks: that have parts of one; 1: the first
    has all of it."""
    return "optimizer.pt" if ranks == 1 else f"optimizer-{rank:05d}-of-{ranks:05d}.pt"


def step_of(folder: str) -> int | None:
    """The step of a checkpoint's folder by its name; None for other names."""
    match = FOLDER_PATTERN.fullmatch(folder)
    return int(match.group(1)) if match else None


def read_state(checkpoint: Path) -> RunState:
    """The state of a checkpoint. Raises CheckpointError when it is missing or unreadable."""
    file = checkpoint / STATE_FILE
    try:
        return STATE.validate_json(content_of(file))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file}: cannot be read ({fault_of(error)}); remove {checkpoint} to resume from the one before"
        ) from error


def degrees_of(spec: ResolvedSpec) -> str:
    """The degrees that the optimizers' states are cut by, as `RunState` holds them."""
    policy = spec.update.parallelism.named
    critic = spec.critic.parallelism.named if spec.critic else ""
    return f"{policy}; critic {critic}".removeprefix("; ") if critic else policy


def check_resumes(
    checkpoint: Path,
    state: RunState,
    *,
    spec_digest: str,
    course_digests: Collection[str],
    degrees: str,
) -> None:
    """Raise CheckpointError unless a job with these digests and degrees goes on from the state.
    course_digests: as this and earlier releases make them."""
    if state.course_digest in course_digests:
        return
    if not state.course_digest and state.degrees != degrees:
        raise CheckpointError(
            f"{checkpoint} was saved by ranks with {state.degrees or 'data alone'}, this job has "
            f"{degrees or 'data alone'} (spec.update.parallelism), which cuts the optimizer's state "
            f"otherwise, and was made before rljob wrote down what is where; resume with the degrees of the "
            "checkpoint, or start a new job from its model"
        )
    if state.spec_digest != spec_digest:
        raise CheckpointError(
            f"{checkpoint} was made by a job with another spec (digest {state.spec_digest}, this "
            f"job's is {spec_digest}); only steps, checkpoint, evaluation, guards, dock, "
            "devices, placement and degrees may differ on --resume"
        )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
