"""The driver: the training iteration as a few calls on the cast, and what happens between them.

Moves no sample data: it names batches and the workers claim their rows in the dock. Reports go to
`metrics`, events to the log, checkpoints to the store; called by `launch`.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from rljob_api.rljob import RLJob
from rljob_runtime.batches import BatchName
from rljob_runtime.checkpoint import CheckpointStore, RunState, read_state
from rljob_runtime.dock.stats import flow_event
from rljob_runtime.errors import CheckpointError, DockError, RewardError, WorkerError
from rljob_runtime.events import EventLog
from rljob_runtime.metrics import Evaluated, evaluation_metrics, step_metrics
from rljob_runtime.placement import Cast
from rljob_runtime.spans import Span

MAX_STEP_ATTEMPTS = 3
ROOM_TIMEOUT_SECONDS = 5.0


class Interrupted(Exception):
    """The user asked to stop; what was not finished is done again on resume."""


@dataclass(slots=True, kw_only=True)
class Driver:
    """Runs the steps of one job on a cast of actors.

    stop: asked between and during stages; True ends the run at once with a checkpoint of the last
    whole step. step: steps that are done. version: version of the weights.
    """

    job: RLJob
    cast: Cast
    log: EventLog
    store: CheckpointStore
    spec_digest: str
    stop: Callable[[], bool]
    step: int = 0
    version: int = 0
    evaluations: list[Evaluated] = field(default_factory=list)
    step_seconds: list[float] = field(default_factory=list)
    phases: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        """Train until the last step. Raises Interrupted, RljobError."""
        spec = self.job.spec
        evaluation = spec.evaluation
        self.reshard()
        self.phases = {}  # that sync belongs to no step
        if evaluation and self.step == 0:
            self.evaluate()
        while self.step < spec.steps:
            self.train_step()
            last = self.step == spec.steps
            if evaluation and (last or (evaluation.every and self.step % evaluation.every == 0)):
                self.evaluate()
            if last or (spec.checkpoint.every and self.step % spec.checkpoint.every == 0):
                self.save()

    def train_step(self) -> None:
        """One step; repeated from its prompts when the dock loses a part of it before the update."""
        for attempt in range(MAX_STEP_ATTEMPTS):
            batch = BatchName(kind="train", step=self.step + 1, attempt=attempt)
            try:
                self._train_step(batch)
                break
            except DockError as error:
                if attempt + 1 == MAX_STEP_ATTEMPTS:
                    raise
                self.log.write("warning", step=batch.step, message=f"{batch} starts over: {error}")
                self._wait("drop", [self.cast.feeder.drop.remote(batch)])
        self._tell_dock()

    def _train_step(self, batch: BatchName) -> None:
        started = time.time()
        generated, rewarded = self._sample(batch, self.job.spec.algorithm.params.kl_coefficient > 0)
        updated = self._wait("update", [w.update.remote(batch) for w in self.cast.updating()])
        self._spans("update", batch.step, [report.span for report in updated])
        self.version = updated[0].version
        self.reshard()
        self.step = batch.step
        seconds = time.time() - started
        self.step_seconds.append(seconds)
        self.log.write(
            "step",
            **step_metrics(
                self.job,
                step=self.step,
                seconds=seconds,
                recent_seconds=self.step_seconds[-20:],
                generated=generated,
                rewarded=rewarded,
                updated=updated,
                peaks=self._wait("memory", [w.peaks.remote() for w in self.cast.devices]),
            ),
            phases=self.phases,
        )
        self.phases = {}

    def evaluate(self) -> None:
        """Sampled accuracy on the held-out prompts under the present weights."""
        batch = BatchName(kind="eval", step=self.step)
        started = time.time()
        _, rewarded = self._sample(batch, False)
        evaluated = evaluation_metrics(rewarded, step=self.step)
        self.evaluations.append(evaluated)
        self.log.write("evaluation", **evaluated.event(), seconds=time.time() - started)

    def _sample(self, batch: BatchName, reference: bool) -> tuple[list[Any], list[Any]]:
        """Generate, score and (with `reference`) infer a batch; the calls overlap through the dock."""
        feed = self.cast.feeder.feed.remote(batch, self.version)
        generate = [worker.generate.remote(batch) for worker in self.cast.generating()]
        reward = [worker.score.remote(batch) for worker in self.cast.rewards]
        infer = [worker.reference.remote(batch) for worker in self.cast.updating() if reference]
        self._wait("feed", [feed])
        generated = self._wait("generate", generate)
        inferred = self._wait("reference", infer)
        rewarded = self._wait("reward", reward)
        held_out = batch.kind == "eval"
        self._spans("generate", batch.step, [report.span for report in generated], held_out)
        self._spans("reference", batch.step, inferred, held_out)
        self._spans("reward", batch.step, [report.span for report in rewarded], held_out)
        self._tell_reward_errors(batch, rewarded)
        check_rewards(batch, rewarded)
        return generated, rewarded

    def _tell_reward_errors(self, batch: BatchName, rewarded: Sequence[Any]) -> None:
        for report in rewarded:
            for name, count in report.errors.items():
                self.log.write(
                    "reward_error",
                    step=batch.step,
                    reward=name,
                    message=report.first_error,
                    count=count,
                )

    def _tell_dock(self) -> None:
        """Write what the step moved through the dock; a warehouse that restarts now is left out."""
        cast = self.cast
        movers = [cast.feeder, *cast.rewards, *cast.devices]
        moved = self._wait("statistics", [worker.traffic.remote() for worker in movers])
        warehouses = []
        for index, warehouse in enumerate(cast.warehouses):
            with contextlib.suppress(ray.exceptions.RayError):
                room = ray.get(warehouse.room.remote(), timeout=ROOM_TIMEOUT_SECONDS)
                warehouses.append({"index": index, **room})
        self.log.write("dock", step=self.step, **flow_event(moved), warehouses=warehouses)

    def reshard(self) -> None:
        """Give the rollout layout the update layout's weights; every engine must hold the same."""
        calls = [worker.sync.remote(self.version) for worker in self.cast.devices]
        reports = self._wait("sync", calls)
        self._spans("sync", self.step + 1, [report.span for report in reports])
        sums = [report.checksum for report in reports if report.checksum]
        if len(set(sums)) > 1:
            raise WorkerError(
                f"weights version {self.version} differ between devices after the sync: "
                f"checksums {sorted(set(sums))}; the run stops, resume from the last checkpoint"
            )

    def resume(self, checkpoint: Path) -> None:
        """Go on from a checkpoint. Raises CheckpointError when it belongs to another job."""
        state = read_state(checkpoint)
        if state.spec_digest != self.spec_digest:
            raise CheckpointError(
                f"{checkpoint} was made by a job with another spec (digest {state.spec_digest}, this "
                f"job's is {self.spec_digest}); only steps, checkpoint, evaluation and dock may "
                "differ on --resume"
            )
        calls = [worker.load.remote(checkpoint) for worker in self.cast.updating()]
        self.version = max(self._wait("resume", calls))
        self.step = state.step

    def save(self) -> None:
        """Checkpoint the last whole step."""
        started = time.time()
        draft = self.store.begin(self.step)
        self._wait("checkpoint", [self.cast.updating()[0].save.remote(draft)], interruptible=False)
        path = self.store.commit(
            RunState(
                step=self.step,
                seed=self.job.spec.seed,
                weight_version=self.version,
                dock_rows=0,
                spec_digest=self.spec_digest,
            )
        )
        self.log.write("checkpoint", step=self.step, path=str(path), seconds=time.time() - started)

    def _spans(
        self, stage: str, step: int, spans: Sequence[Span | None], held_out: bool = False
    ) -> None:
        """Write when a stage ran on each worker, and keep the slowest's seconds for the step."""
        known = [(worker, span) for worker, span in enumerate(spans) if span is not None]
        for worker, span in known:
            self.log.write(
                "phase",
                name=stage,
                step=step,
                role=self._role(stage),
                device=worker,
                start=span.start,
                end=span.end,
                evaluation=held_out,
            )
        if known and not held_out:
            self.phases[stage] = max(span.seconds for _, span in known)

    def _role(self, stage: str) -> str:
        """Who runs a stage: a row of the report's timeline."""
        if stage == "reward":
            return "reward"
        if self.job.spec.placement.mode == "colocated" or stage == "sync":
            return "device"
        return "rollout" if stage == "generate" else "update"

    def _wait(self, stage: str, calls: Sequence[Any], *, interruptible: bool = True) -> list[Any]:
        """Results of the calls, in order; looks at the stop flag and the deadline meanwhile."""
        limit = self.job.spec.flow.stage_timeout_seconds
        deadline = time.monotonic() + limit
        pending = list(calls)
        while pending:
            done, pending = ray.wait(pending, num_returns=len(pending), timeout=0.1)
            ray.get(done)  # a failure of one shows at once, not when the last has ended
            if pending and interruptible and self.stop():
                raise Interrupted(stage)
            if pending and time.monotonic() > deadline:
                raise WorkerError(
                    f"stage {stage}: {len(pending)} of {len(calls)} workers did not finish within "
                    f"{limit:.0f} s (spec.flow.stageTimeoutSeconds)"
                )
        return list(ray.get(list(calls)))


def check_rewards(batch: BatchName, rewarded: Sequence[Any]) -> None:
    """Raise RewardError when no sample of the batch could be scored."""
    scored = sum(len(report.totals) for report in rewarded)
    failed = sum(report.failed for report in rewarded)
    if scored and failed == scored:
        first = next(report.first_error for report in rewarded if report.first_error)
        raise RewardError(
            f"all {scored} samples of {batch} failed in a reward (spec.rewards); the first error "
            f"was: {first}"
        )
