"""The rounds of a partial rollout: which prompts each begins, and how many go on from it. Pure.

The driver's side, which knows no sample. Which groups go on is decided by the workers (`open_groups`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from rljob_api.topology.devices import open_prompts
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.prompts.open_prompts import OpenPrompts
from rljob_runtime.prompts.rounds import Round
from rljob_runtime.prompts.schedule import Asked, PromptState, Schedule, Updated
from rljob_runtime.samples.batches import BatchName


@dataclass(slots=True, kw_only=True)
class Pools(Schedule):
    """The pools of a run with a partial rollout.

    prompts: of a step, which each round completes. extra: that are open beside them; none after the last
    step, so that nothing is generated in vain. steps: of the run. several: whether a step may have several
    rounds; then none knows which is the last, and all are alike.
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
        """Those of a job with a partial rollout."""
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

    def begin(self, step: int, *, attempt: int = 0, skipped: int = 0, replicas: int = 1) -> Asked:
        """With the step's round."""
        asked = Schedule.begin(self, step, attempt=attempt, skipped=skipped)
        return replace(asked, round=self.make_round(step))

    def make_round(self, step: int) -> Round:
        """The next round, of this step. Rounds begin in order, each once the one before has put its
        groups."""
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

    def trained(self, updated: Sequence[Updated]) -> None:
        """Of their prompts, none is open any more."""
        for report in updated:
            self.account.close(report.lineage.positions if report.lineage else ())

    def start_over(self, *, trained: bool = False) -> None:
        """What is under way is lost, and fed again: the next round has only fresh groups."""
        self.account.start_over()
        self._next, self._carried = None, 0
        self._lives += 1  # a batch's name is never used again

    def state(self) -> PromptState:
        """Open prompts are begun anew."""
        return self.account.state()

    def restore(self, state: PromptState) -> None:
        """As `state` left it."""
        self.account.restore(state)

    def roll_back(self, state: PromptState) -> None:
        """What is under way was drawn by weights that are undone."""
        self.start_over()

    def _groups(self, step: int) -> int:
        return self.prompts + (self.extra if self.several or step < self.steps else 0)

    def _name(self, number: int) -> BatchName:
        return BatchName(kind="pool", step=number, attempt=self._lives)
