"""A run that goes on from another's checkpoint in a folder of its own: to repeat a step, or with another job.

Called by `rljob replay` and `rljob fork`. Prompts and noise follow from seed, step, prompt and sample, so
that a branch has those of the run it comes from. A checkpoint's files are linked, not copied, where they can
be.
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
"""What a replay leaves out of the job: nobody but its caller hears of it. None of it changes a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branched:
    """A run's folder that others may branch from. base: what its job's paths are relative to."""

    folder: Path
    manifest: dict[str, Any]
    base: Path
    events: Sequence[Event]
    store: CheckpointStore

    @classmethod
    def of(cls, folder: Path) -> "Branched":
        """Raises ConfigError where the folder holds no run."""
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
        """That the run told, the last time."""
        return {e.step: e for e in cut_rewound(self.events) if isinstance(e, StepEvent)}

    def versions_beside(self, other: "Branched") -> list[tuple[str, str, str]]:
        """Packages, and what the machine is called by, that this run and another had otherwise: name, this
        one's, the other's."""
        a, b = (_made_with(run.events) for run in (self, other))
        return [(name, a[name], b[name]) for name in a if name in b and a[name] != b[name]]

    def job(self, changes: Mapping[str, JsonValue]) -> RLJob:
        """The run's job with changes by their paths below spec; None takes a field out. Raises ConfigError,
        InvalidJob."""
        manifest = {**self.manifest, "spec": _changed(self.manifest.get("spec") or {}, changes)}
        return read_job(manifest, name=str(self.folder / SPEC_NAME))

    def check_step(self, step: int) -> None:
        """Raise ConfigError where the run has a checkpoint of this step not, and it is not the beginning."""
        if step and step not in self.store.steps():
            raise ConfigError(f"{self.folder} has no checkpoint of step {step}; {self._those()}")

    def start_of(self, step: int, *, from_start: bool) -> int:
        """The step after which a replay of `step` begins. Raises ConfigError where nothing is there to begin
        with, or the run made the step with what no checkpoint knows."""
        before = [0] if step == 1 or from_start else []
        found = [s for s in self.store.steps() if s < step and not from_start]
        if not (start := [*before, *sorted(found)][-1:]):
            raise ConfigError(
                f"{self.folder} has no checkpoint before step {step}; {self._those()}, or add --from-start "
                f"to compute all steps from the first on"
            )
        back = [e.rolled_back_to for e in self.events if isinstance(e, AlarmEvent)]
        if skipped := [to for to in back if to is not None and start[0] <= to < step]:
            raise ConfigError(
                f"a guard rolled {self.folder} back to step {skipped[-1]} and on with other prompts, which "
                f"no checkpoint before step {step} knows of; name a step after a later checkpoint"
            )
        return start[0]

    def branch(self, folder: Path, *, after: int, job: RLJob) -> None:
        """Make the folder of a run that resumes after this step, 0: that begins. Raises ConfigError where
        there is something."""
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError(f"--output {folder} is not empty; name another folder")
        folder.mkdir(parents=True, exist_ok=True)
        if after == 0:
            return
        shutil.copyfile(self.folder / EVENTS_NAME, folder / EVENTS_NAME)
        resolved, state = resolve(job), read_state(self.store.path(after))
        course = course_digest(resolved) if state.course_digest else ""
        state = replace(state, spec_digest=spec_digest(resolved), course_digest=course)
        _linked(
            self.store.path(after), CheckpointStore(folder=folder / "checkpoints", keep=1), state
        )

    def _those(self) -> str:
        steps = sorted(self.store.steps())
        return (
            f"it has those of steps {', '.join(map(str, steps))}" if steps else "it has none at all"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Of a replay. refuted: why, empty where the step is proven."""

    step: int
    digest: Digest
    refuted: str = ""


def check_repeats(spec: ResolvedSpec) -> None:
    """Raise ConfigError for a job whose steps come out otherwise each time."""
    why = {
        f"flow.mode: {spec.flow.mode}": spec.flow.mode == "async",
        "flow.partialRollout": spec.flow.partial_rollout is not None,
        f"rollout.engine: {spec.rollout.engine}": spec.rollout.engine != "torch",
    }
    if found := [name for name, is_so in why.items() if is_so and "generate" in spec.states]:
        raise ConfigError(
            f"no step of a job with spec.{found[0]} comes out twice in the same bits, so that none can be "
            "replayed; modes sync and streaming with engine torch and no partialRollout do"
        )


def verdict(told: Mapping[int, StepEvent], found: Mapping[int, StepEvent], step: int) -> Verdict:
    """Whether a run's step came out again. told: its steps; found: those of the replay. Raises ConfigError
    for a step without a digest."""
    digests = {number: event.digest for number, event in told.items() if event.digest}
    if step not in digests:
        raise ConfigError(
            f"the run told no digest of step {step}; only steps of this version have one"
        )
    own = found[step].digest
    assert own is not None, f"a replay that ended well tells step {step}"
    refuted = _refuted(told, found, step, digests)
    return Verdict(step=step, digest=own, refuted=refuted)


def _refuted(
    told: Mapping[int, StepEvent],
    found: Mapping[int, StepEvent],
    step: int,
    digests: Mapping[int, Digest],
) -> str:
    for number in sorted(n for n in found if n in digests and n <= step):
        was, now = digests[number], found[number].digest
        link = first_difference(was, now) if now else None
        if link is not None:
            differs = (
                f"{link} differ first, told {getattr(was, link)}, computed {getattr(now, link)}"
            )
            return differs if number == step else f"step {number} on the way: {differs}"
        for name in _repeating(told[number].metrics):
            if told[number].metrics[name] != found[number].metrics.get(name):
                told_value, value = told[number].metrics[name], found[number].metrics.get(name)
                return f"the events were changed: step {number} tells {name} {told_value}, computed {value}"
    upto = {number: digest for number, digest in digests.items() if number <= step}
    if broken := next(broken_links(upto), None):
        return f"the events were changed: the chain breaks at step {broken}"
    return ""


def _repeating(metrics: Mapping[str, float | None]) -> list[str]:
    """Metrics that follow from what a step's digest is of."""
    return [n for n in metrics if n.startswith("reward/") or n in ("loss", "gradient_norm")]


def _made_with(events: Sequence[Event]) -> dict[str, str]:
    last = [event for event in events if isinstance(event, RunStartedEvent)][-1:]
    return {**last[0].versions, **last[0].machine} if last else {}


def _changed(spec: Mapping[str, Any], changes: Mapping[str, JsonValue]) -> dict[str, Any]:
    changed = {**spec}
    for path, value in changes.items():
        name, _, below = path.partition(".")
        if not below:
            changed.pop(name, None)
            changed |= {} if value is None else {name: value}
            continue
        inner = changed.get(name)
        if inner is not None and not isinstance(inner, Mapping):
            raise ConfigError(
                f"spec.{name} is {inner!r}, which has no field {below}; set {name} itself"
            )
        if inner is not None or value is not None:
            changed[name] = _changed(inner or {}, {below: value})
    return changed


def _linked(checkpoint: Path, store: CheckpointStore, state: RunState) -> None:
    """The checkpoint in another store, with another state."""
    draft = store.begin(state.step)
    for file in checkpoint.rglob("*"):
        place = draft / file.relative_to(checkpoint)
        if file.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        elif file.name not in (STATE_FILE, SUMS_FILE) or file.parent != checkpoint:
            place.parent.mkdir(parents=True, exist_ok=True)
            _link(file, place)
    if (sums := checkpoint / SUMS_FILE).exists():
        others = {name: value for name, value in read_json(sums).items() if name != STATE_FILE}
        (draft / f"{SUMS_FILE}.0").write_text(json.dumps(others))
    store.commit(state)


def _link(file: Path, place: Path) -> None:
    try:
        os.link(file, place)
    except OSError:  # another file system, or one without links
        shutil.copyfile(file, place)
