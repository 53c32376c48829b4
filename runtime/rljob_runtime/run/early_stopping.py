"""The state of a run's evaluations: which was the best, and whether training ends early. The driver calls it.

`best` decides what is better. This module reads, writes and reports it, and keeps its checkpoint.
"""

from dataclasses import dataclass

from rljob_api.spec.evaluation import EarlyStop
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.record.best import Best
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.event_types import BestEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.metrics import EvaluationResult


@dataclass(slots=True, kw_only=True)
class EarlyStopping:
    """The evaluations of one run. best: the best so far. rule: when training ends early, None: never.
    keeps_best: the best checkpoint is kept."""

    best: Best
    rule: EarlyStop | None
    keeps_best: bool
    log: EventLog
    store: CheckpointStore

    @classmethod
    def of(cls, spec: ResolvedSpec, *, log: EventLog, store: CheckpointStore) -> "EarlyStopping":
        """Return the state of a run that has not evaluated anything."""
        evaluation = spec.evaluation
        return cls(
            best=Best(metric=evaluation.metric if evaluation else "accuracy"),
            rule=evaluation.early_stop if evaluation else None,
            keeps_best=spec.checkpoint.keep_best,
            log=log,
            store=store,
        )

    def read(self, step: int) -> None:
        """Restore the state that the run's evaluations until this step left."""
        self.best = Best.read(self.store.folder, self.best.metric).until(step)
        self.store.best.clear()
        if self.best.step and self.store.path(self.best.step).exists():
            self.store.best.add(self.best.step)

    def count(self, evaluated: EvaluationResult) -> bool:
        """Take an evaluation in. Returns whether its checkpoint is to be kept as the best."""
        value = evaluated.value(self.best.metric)
        min_delta = self.rule.min_delta if self.rule else 0.0
        is_best = self.best.take(evaluated.step, value, min_delta=min_delta)
        self.best.write(self.store.folder)
        return is_best and self.keeps_best

    def keep_best(self) -> None:
        """Keep the best checkpoint, which must exist, and remove the previous one."""
        best = self.best
        assert best.step, "the model before training has no checkpoint"
        self.store.best.clear()
        self.store.best.add(best.step)
        self.store.drop_old()
        self.log.write(BestEvent(step=best.step, metric=best.metric, value=best.value))

    @property
    def ends_early(self) -> bool:
        """Whether evaluations have stopped improving."""
        return self.best.ends(self.rule)

    def last_words(self, step: int, steps: int) -> str:
        """Return why a run that succeeded after `step` did not make all steps; empty if it did."""
        if step == steps or not self.ends_early:
            return ""
        best = self.best
        return (
            f"stopped early after step {step}: {best.waited} evaluations without a better {best.metric} "
            f"(spec.evaluation.earlyStop); the best was {best.value:.4g} after step {best.step}"
        )
