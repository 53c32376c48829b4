"""Plan the rounds of a partial rollout: the prompts that each begins, and how many continue after it.
Pure.

This is the driver's side, which reads no samples. The workers decide which groups continue
(`open_groups`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from rljob_api.topology.devices import open_prompts
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.prompts.open_prompts import OpenPrompts
from rljob_runtime.prompts.rounds import Round
from rljob_runtime.prompts.schedule import BatchRequest, PromptSchedule, PromptState, UpdateSummary
from rljob_runtime.samples.batches import BatchName


@dataclass(slots=True, kw_only=True)
class Pools(PromptSchedule):
    """The schedule of a run with a partial rollout.

    prompts: number of prompts of a step, which each round completes. extra: number of further open
    prompts. The last step has none, so that no generated token is wasted. steps: those of the run.
    several: whether a step may have several rounds. Then no round can be identified as the last one, and
    all have equal sizes.
    """

    prompts: int
    extra: int
    steps: int
    several: bool = False
    account: OpenPrompts = field(default_factory=OpenPrompts)
    _next: int | None = None
    _carried: int = 0
    _lives: int = 0

    @classmethod
    def of(
        cls, spec: ResolvedSpec, *, several: bool = False, account: OpenPrompts | None = None
    ) -> "Pools | None":
        """Return the schedule of a job with a partial rollout, or None for other jobs."""
        extra = open_prompts(spec)
        if not extra:
            return None
        return cls(
            prompts=spec.batch.global_batch_size,
            extra=extra,
            steps=spec.steps,
            several=several,
            account=account or OpenPrompts(),
        )

    lost_together: ClassVar[bool] = True

    def begin(
        self, step: int, *, attempt: int = 0, skipped: int = 0, replicas: int = 1
    ) -> BatchRequest:
        """Begin a step with its first round."""
        request = PromptSchedule.begin(self, step, attempt=attempt, skipped=skipped)
        return replace(request, round=self.make_round(step))

    def make_round(self, step: int) -> Round:
        """Return the next round, of this step. Rounds begin in order, each once the one before has put
        its groups."""
        number = self._next or step
        groups, carried = self._groups(step), self._carried
        fresh = self.account.take(groups - carried)
        self._next, self._carried = number + 1, groups - self.prompts
        return Round(
            pool=self._name(number),
            next_pool=self._name(number + 1),
            groups=groups,
            fresh=fresh,
            next_groups=self._groups(step + 1),
        )

    def finish_step(self, reports: Sequence[UpdateSummary]) -> None:
        """Close the prompts of the update's samples."""
        for report in reports:
            self.account.close(report.lineage.positions if report.lineage else ())

    def start_over(self, *, trained: bool = False) -> None:
        """Discard all pending groups and feed their prompts again: the next round has only fresh
        groups."""
        self.account.start_over()
        self._next, self._carried = None, 0
        self._lives += 1  # a batch's name is never used again

    def state(self) -> PromptState:
        """Return the state for a checkpoint, from which all open prompts are begun again."""
        return self.account.state()

    def restore(self, state: PromptState) -> None:
        """Continue from a state that `state` returned."""
        self.account.restore(state)

    def roll_back(self, state: PromptState) -> None:
        """Discard all pending groups, since discarded weights drew them."""
        self.start_over()

    def _groups(self, step: int) -> int:
        return self.prompts + (self.extra if self.several or step < self.steps else 0)

    def _name(self, number: int) -> BatchName:
        return BatchName(kind="pool", step=number, attempt=self._lives)
