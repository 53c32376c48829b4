"""A model of a step's duration, from the durations of its states and the job's flow. Pure; called by the
advice.

Used only for ratios: a change should affect the measured time like the model's time.
"""

from dataclasses import dataclass
from typing import Self

from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.report.analysis.blame import INFERENCE
from rljob_runtime.report.analysis.step_figures import StepFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """Seconds that the states of a step work.

    half_seconds: until half of the samples are generated, which is about when the first groups are complete.
    groups: number of groups, which are scored one by one. parts: passes of the first optimizer step, which
    takes samples as they arrive; first: its share of the update.
    """

    mode: str
    separated: bool
    generate: float
    half_seconds: float
    inference: float
    reward: float
    update: float
    sync: float
    other: float
    groups: int
    parts: int
    first: float

    @classmethod
    def of(cls, figures: StepFigures, spec: ResolvedSpec) -> Self:
        """Derive the work from measured figures."""
        busy, batch = figures.busy, spec.batch
        return cls(
            mode=spec.flow.mode,
            separated=spec.placement.mode == "separated",
            generate=busy.get("generate", 0.0),
            half_seconds=min(figures.half_seconds, busy.get("generate", 0.0)),
            inference=sum(busy.get(state, 0.0) for state in INFERENCE),
            reward=busy.get("reward", 0.0),
            update=busy.get("update", 0.0) + busy.get("critic", 0.0),
            sync=busy.get("sync", 0.0),
            other=figures.blame.get("other", 0.0) + figures.blame.get("dock", 0.0),
            groups=batch.global_batch_size,
            parts=max(batch.passes(spec.update.parallelism.data), 1),
            first=batch.mini_batch_size / (batch.global_batch_size * batch.epochs),
        )

    def seconds(self) -> float:
        """Return the duration of a step in a steady state."""
        if self.mode == "sync":
            scored = max(self.inference, self.reward)
            return self.generate + scored + self.update + self.sync + self.other
        if self.mode == "async":
            trains = self.inference + self.update + self.sync
            return max(self.generate + self.sync, self.reward, trains) + self.other
        return self._streaming_seconds() + self.sync + self.other

    def _streaming_seconds(self) -> float:
        """Duration if each state takes rows as they become ready. Colocated devices finish generation before
        any other state."""
        generated, first = self.generate, self.half_seconds
        scored = _end_of_work(first, self.reward, generated, self.groups)
        if self.separated:
            inferred = _end_of_work(first, self.inference, generated, self.parts)
            begins = first + self.reward / self.groups + self.inference / self.parts
        else:
            inferred = begins = generated + self.inference
        streams = self.update * self.first
        ends = _end_of_work(begins, streams, max(scored, inferred), self.parts)
        return ends + self.update - streams


def _end_of_work(begins: float, seconds: float, last_comes: float, parts: int) -> float:
    """Return when a state has processed work that arrives in this many parts."""
    return max(begins + seconds, last_comes + seconds / parts)
