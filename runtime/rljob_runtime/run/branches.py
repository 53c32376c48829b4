"""A run in its own folder that continues from another run's checkpoint: to repeat a step, or with another
job.

`rljob replay` and `rljob fork` call it. Prompts and noise follow from seed, step, prompt and sample, so a
branch has those of the run it comes from. A checkpoint's files are linked rather than copied if possible.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from rljob_api.check.load import read_job
from rljob_api.check.yaml_text import parse_yaml
from rljob_api.spec.json_text import read_json
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_runtime.errors import ConfigError
from rljob_runtime.record.checkpoint import STATE_FILE, CheckpointStore, RunState, read_state
from rljob_runtime.record.checksums import SUMS_FILE
from rljob_runtime.record.digests import broken_links, first_difference
from rljob_runtime.record.event_types import AlarmEvent, Digest, Event, RunStartedEvent, StepEvent
from rljob_runtime.record.events import cut_rewound, events_in
from rljob_runtime.record.remote import EVENTS_NAME
from rljob_runtime.run.run_place import SPEC_NAME
from rljob_runtime.run.run_request import course_digest, spec_digest

AS_ALONE: Mapping[str, JsonValue] = {
    "checkpoint.every": None,
    "checkpoint.storage": None,
    "tracking": None,
    "profile": None,
    "guards": None,
}
"""Fields of the job that a replay removes, because only its caller is interested in it. None of them changes
a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchSource:
    """The folder of a run that others may branch from. base: what its job's paths are relative to."""

    folder: Path
    manifest: dict[str, Any]
    base: Path
    events: Sequence[Event]
    store: CheckpointStore

    @classmethod
    def of(cls, folder: Path) -> "BranchSource":
        """Read a run's folder. Raises ConfigError if the folder holds no run."""
        log, job = folder / EVENTS_NAME, folder / SPEC_NAME
        for file in (log, job):
            if not file.is_file():
                raise ConfigError(f"{folder} holds no {file.name}; name the folder of a run")
        with log.open("rb") as lines:
            events = [*events_in(lines, brief=True)]
        started = [event for event in events if isinstance(event, RunStartedEvent)]
        base = next((event.job_folder for event in started if event.job_folder), None)
        return cls(
            folder=folder,
            manifest=parse_yaml(job.read_text(), name=str(job)),
            base=Path(base) if base else folder,
            events=events,
            store=CheckpointStore(folder=folder / "checkpoints", keep=1),
        )

    def steps(self) -> dict[int, StepEvent]:
        """Return the steps that the run reported, each as it was reported last."""
        return {e.step: e for e in cut_rewound(self.events) if isinstance(e, StepEvent)}

    def version_differences(self, other: "BranchSource") -> list[tuple[str, str, str]]:
        """Return the packages and machine facts that differ between this run and another: name, this run's,
        the other's."""
        a, b = (_software_of(run.events) for run in (self, other))
        return [(name, a[name], b[name]) for name in a if name in b and a[name] != b[name]]

    def job(self, changes: Mapping[str, JsonValue]) -> RLJob:
        """Return the run's job with changes by their paths below spec; None removes a field. Raises
        ConfigError, InvalidJob."""
        manifest = {**self.manifest, "spec": _changed(self.manifest.get("spec") or {}, changes)}
        return read_job(manifest, name=str(self.folder / SPEC_NAME))

    def check_step(self, step: int) -> None:
        """Raise ConfigError if the run has no checkpoint of this step, unless the step is 0, the
        beginning."""
        if step and step not in self.store.steps():
            raise ConfigError(
                f"{self.folder} has no checkpoint of step {step}; {self._checkpoint_steps()}"
            )

    def replay_start(self, step: int, *, from_start: bool) -> int:
        """Return the step after which a replay of `step` begins. Raises ConfigError if there is no checkpoint
        to begin with, or if a rollback in between changed the prompts, which no checkpoint records."""
        beginning = [0] if step == 1 or from_start else []
        earlier_steps = [s for s in self.store.steps() if s < step and not from_start]
        if not (start := [*beginning, *sorted(earlier_steps)][-1:]):
            raise ConfigError(
                f"{self.folder} has no checkpoint before step {step}; {self._checkpoint_steps()}, "
                f"or add --from-start "
                f"to compute all steps from the first on"
            )
        rollback_targets = [e.rolled_back_to for e in self.events if isinstance(e, AlarmEvent)]
        if skipped := [to for to in rollback_targets if to is not None and start[0] <= to < step]:
            raise ConfigError(
                f"a guard rolled {self.folder} back to step {skipped[-1]} and on with other prompts, which "
                f"no checkpoint before step {step} knows of; name a step after a later checkpoint"
            )
        return start[0]

    def branch(self, folder: Path, *, after: int, job: RLJob) -> None:
        """Create the folder of a run that resumes after this step; after step 0 it begins. Raises ConfigError
        if the folder is not empty."""
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"--output {folder} is not empty; name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        if after == 0:
            return
        shutil.copyfile(self.folder / EVENTS_NAME, folder / EVENTS_NAME)
        resolved, state = resolve(job), read_state(self.store.path(after))
        course = course_digest(resolved) if state.course_digest else ""
        state = replace(state, spec_digest=spec_digest(resolved), course_digest=course)
        _link_checkpoint(
            self.store.path(after), CheckpointStore(folder=folder / "checkpoints", keep=1), state
        )

    def _checkpoint_steps(self) -> str:
        steps = sorted(self.store.steps())
        return (
            f"it has those of steps {', '.join(map(str, steps))}" if steps else "it has none at all"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayVerdict:
    """The verdict on a replay. refuted: the reason, empty if the step is proven."""

    step: int
    digest: Digest
    refuted: str = ""


def check_repeats(spec: ResolvedSpec) -> None:
    """Raise ConfigError for a job whose steps give different results each time."""
    reasons = {
        f"flow.mode: {spec.flow.mode}": spec.flow.mode == "async",
        "flow.partialRollout": spec.flow.partial_rollout is not None,
        f"rollout.engine: {spec.rollout.engine}": spec.rollout.engine != "torch",
    }
    if obstacles := [
        name for name, applies in reasons.items() if applies and "generate" in spec.states
    ]:
        raise ConfigError(
            f"no step of a job with spec.{obstacles[0]} comes out twice in the same bits, so that none can "
            "be replayed; modes sync and streaming with engine torch and no partialRollout do"
        )


def verdict(
    reported: Mapping[int, StepEvent], replayed: Mapping[int, StepEvent], step: int
) -> ReplayVerdict:
    """Return whether a run's step had the same result again. reported: the run's steps; replayed: those of
    the replay. Raises ConfigError for a step without a digest."""
    digests = {number: event.digest for number, event in reported.items() if event.digest}
    if step not in digests:
        raise ConfigError(
            f"the run told no digest of step {step}; only steps of this version have one"
        )
    digest = replayed[step].digest
    assert digest is not None, f"a replay that ended well tells step {step}"
    refuted = _refuted(reported, replayed, step, digests)
    return ReplayVerdict(step=step, digest=digest, refuted=refuted)


def _refuted(
    reported: Mapping[int, StepEvent],
    replayed: Mapping[int, StepEvent],
    step: int,
    digests: Mapping[int, Digest],
) -> str:
    """Return why the replay refutes the step; empty if it does not."""
    for number in sorted(n for n in replayed if n in digests and n <= step):
        before, after = digests[number], replayed[number].digest
        link = first_difference(before, after) if after else None
        if link is not None:
            differs = f"{link} differ first, told {getattr(before, link)}, computed {getattr(after, link)}"
            return differs if number == step else f"step {number} on the way: {differs}"
        for name in _repeating(reported[number].metrics):
            if reported[number].metrics[name] != replayed[number].metrics.get(name):
                reported_value, value = (
                    reported[number].metrics[name],
                    replayed[number].metrics.get(name),
                )
                return (
                    f"the events were changed: step {number} tells {name} "
                    f"{reported_value}, computed {value}"
                )
    upto = {number: digest for number, digest in digests.items() if number <= step}
    if broken := next(broken_links(upto), None):
        return f"the events were changed: the chain breaks at step {broken}"
    return ""


def _repeating(metrics: Mapping[str, float | None]) -> list[str]:
    """Return the metrics that follow from what a step's digest covers."""
    return [n for n in metrics if n.startswith("reward/") or n in ("loss", "gradient_norm")]


def _software_of(events: Sequence[Event]) -> dict[str, str]:
    last = [event for event in events if isinstance(event, RunStartedEvent)][-1:]
    return {**last[0].versions, **last[0].machine} if last else {}


def _changed(spec: Mapping[str, Any], changes: Mapping[str, JsonValue]) -> dict[str, Any]:
    changed = {**spec}
    for path, value in changes.items():
        name, _, rest_of_path = path.partition(".")
        if not rest_of_path:
            changed.pop(name, None)
            changed |= {} if value is None else {name: value}
            continue
        inner = changed.get(name)
        if inner is not None and not isinstance(inner, Mapping):
            raise ConfigError(
                f"spec.{name} is {inner!r}, which has no field {rest_of_path}; set {name} itself"
            )
        if inner is not None or value is not None:
            changed[name] = _changed(inner or {}, {rest_of_path: value})
    return changed


def _link_checkpoint(checkpoint: Path, store: CheckpointStore, state: RunState) -> None:
    """Link the checkpoint into another store, with another state."""
    draft = store.begin(state.step)
    for file in checkpoint.rglob("*"):
        target_file = draft / file.relative_to(checkpoint)
        if file.is_dir():
            target_file.mkdir(parents=True, exist_ok=True)
        elif file.name not in (STATE_FILE, SUMS_FILE) or file.parent != checkpoint:
            target_file.parent.mkdir(parents=True, exist_ok=True)
            _link_file(file, target_file)
    if (sums := checkpoint / SUMS_FILE).exists():
        others = {name: value for name, value in read_json(sums).items() if name != STATE_FILE}
        (draft / f"{SUMS_FILE}.0").write_text(json.dumps(others))
    store.commit(state)


def _link_file(file: Path, target_file: Path) -> None:
    try:
        os.link(file, target_file)
    except OSError:  # another file system, or one without links
        shutil.copyfile(file, target_file)
