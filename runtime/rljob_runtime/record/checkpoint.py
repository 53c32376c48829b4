"""Checkpoints of a run: `checkpoints/step-000020/` with the model, the optimizer and the position.

The model is a complete Hugging Face directory. A checkpoint is published and removed by one rename each, so
it is always complete or absent. The update ranks write it through the driver; `--resume` reads it.
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
from rljob_runtime.record.checksums import merge_rank_sums

STATE_FILE = "state.json"
MODEL_FOLDER = "model"
CRITIC_FOLDER = "critic"
FOLDER_PATTERN = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a run after `step` steps.

    All random numbers and the data order derive from (seed, step), so these two define the position in both.
    A checkpoint contains no rows of the dock; dock_rows is therefore 0. weight_version: version of the
    weights, which is the number of steps that produced them. spec_digest: digest of the fields that a resumed
    run must share. course_digest: digest of those that it must share even if its devices or layouts differ.
    degrees: degrees of the update layout that the optimizer's state is sharded by; empty if it is not
    sharded. With a partial rollout, prompts are given by their position in the training stream:
    first_new_prompt is the first that was never started; open_prompts were started but not trained on, and a
    resumed run starts them again. rollbacks: number of rollbacks; skipped_steps: number of steps whose
    prompts they skipped (`alarm_actions`). difficulty: state of a difficulty filter (`difficulty`);
    first_new_prompt is then the first prompt that the filter has not read. chain: chain value of the step's
    digest (`digests`).
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
        """State of the prompt schedule."""
        return PromptState(
            first_new_prompt=self.first_new_prompt,
            open_prompts=self.open_prompts,
            difficulty=self.difficulty,
        )


STATE = TypeAdapter(RunState)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStore:
    """The checkpoints of one run folder, of which the last `keep` are retained.

    pinned: steps that are being copied and must not be dropped. best: step of the best evaluation, which is
    not dropped either.
    """

    folder: Path
    keep: int
    pinned: set[int] = field(default_factory=set)
    best: set[int] = field(default_factory=set)

    def path(self, step: int) -> Path:
        """Final path of a step's checkpoint."""
        return self.folder / f"step-{step:06d}"

    def begin(self, step: int) -> Path:
        """Create an empty folder to write into. `latest` ignores it until `commit`."""
        draft = self._draft_path(step)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        return draft

    def commit(self, state: RunState) -> Path:
        """Complete the draft of the state's step and `publish` it."""
        state_file = self._draft_path(state.step) / STATE_FILE
        state_file.write_text(json.dumps(asdict(state), indent=2) + "\n")
        merge_rank_sums(self._draft_path(state.step), [STATE_FILE])
        return self.publish(state.step)

    def publish(self, step: int) -> Path:
        """Make a complete draft the newest checkpoint and drop the oldest."""
        draft = self._draft_path(step)
        for file in draft.rglob("*"):
            if file.is_file():
                _sync(file)
        final, replaced = self.path(step), self._replaced_path(step)
        if final.exists():
            final.rename(replaced)
        draft.rename(final)
        _sync(self.folder)
        shutil.rmtree(replaced, ignore_errors=True)
        self.drop_old()
        return final

    def recover(self) -> None:
        """Clean up after a process that died while it wrote; called before the folder is used.

        A checkpoint that was being replaced is restored; all other incomplete folders are removed.
        """
        for step, replaced in self._folders_with_prefix(".replaced-"):
            if not self.path(step).exists():
                replaced.rename(self.path(step))
        for kind in (".replaced-", ".dropped-", ".draft-"):
            for _, leftover in self._folders_with_prefix(kind):
                shutil.rmtree(leftover, ignore_errors=True)

    def set_aside(self, step: int) -> Path:
        """Move a damaged checkpoint to a path that no run resumes from, and return that path."""
        aside = self.folder / f"damaged-step-{step:06d}"
        shutil.rmtree(aside, ignore_errors=True)
        self.path(step).rename(aside)
        return aside

    def drop_old(self) -> None:
        """Drop all but the last `keep`, the best and the pinned checkpoints."""
        for step in sorted(self.steps())[: -self.keep]:
            if step not in self.pinned | self.best:
                self._drop(step)

    def drop_after(self, step: int) -> None:
        """Drop the checkpoints of later steps, the newest first."""
        for later in sorted((s for s in self.steps() if s > step), reverse=True):
            self._drop(later)

    def latest(self) -> Path | None:
        """Path of the newest checkpoint, or None."""
        step = self.last_step()
        return None if step is None else self.path(step)

    def last_step(self, *, before: int | None = None) -> int | None:
        """Step of the newest checkpoint, or None. before: consider only earlier steps."""
        return max((s for s in self.steps() if before is None or s < before), default=None)

    def _drop(self, step: int) -> None:
        dropped = self.folder / f".dropped-step-{step:06d}"
        self.path(step).rename(dropped)
        shutil.rmtree(dropped, ignore_errors=True)

    def _draft_path(self, step: int) -> Path:
        return self.folder / f".draft-step-{step:06d}"

    def _replaced_path(self, step: int) -> Path:
        return self.folder / f".replaced-step-{step:06d}"

    def steps(self) -> list[int]:
        """Steps of all complete checkpoints, in any order."""
        return [step for step, _ in self._folders_with_prefix("")]

    def _folders_with_prefix(self, prefix: str) -> list[tuple[int, Path]]:
        """List the folders with this prefix, with the step that follows the prefix."""
        if not self.folder.is_dir():
            return []
        folders = [
            (step_of(path.name.removeprefix(prefix)), path)
            for path in self.folder.iterdir()
            if path.name.startswith(prefix)
        ]
        return [(step, path) for step, path in folders if step is not None]


def optimizer_file(rank: int, ranks: int) -> str:
    """Name of the file with an update rank's optimizer state.

    ranks: number of ranks that hold shards of one state; with 1, the first rank holds all of it.
    """
    return "optimizer.pt" if ranks == 1 else f"optimizer-{rank:05d}-of-{ranks:05d}.pt"


def step_of(folder: str) -> int | None:
    """Parse the step from the name of a checkpoint folder; None for other names."""
    match = FOLDER_PATTERN.fullmatch(folder)
    return int(match.group(1)) if match else None


def read_state(checkpoint: Path) -> RunState:
    """Read the state of a checkpoint. Raises CheckpointError if it is missing or unreadable."""
    file = checkpoint / STATE_FILE
    try:
        return STATE.validate_json(content_of(file))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{file}: cannot be read ({fault_of(error)}); remove {checkpoint} to resume from the one before"
        ) from error


def degrees_of(spec: ResolvedSpec) -> str:
    """Degrees that the optimizers' states are sharded by, as stored in `RunState`."""
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
    """Raise CheckpointError unless a job with these digests and degrees can resume from the state.

    course_digests: as computed by this release and by earlier ones.
    """
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
