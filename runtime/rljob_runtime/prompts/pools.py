"""Which prompts are open in a partial rollout: fed, carried from step to step, trained on once. Pure.

The driver's side: it knows prompts by their positions in the training stream, counted from 0, and no
sample. Which groups go on is decided by the workers (`open_groups`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from rljob_api.topology.devices import open_prompts
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.prompts.rounds import Round
from rljob_runtime.prompts.schedule import Asked, PromptState, Schedule, Scored, Updated
from rljob_runtime.samples.batches import BatchName


@dataclass(slots=True, kw_only=True)
class Pools(Schedule):
    """The open prompts of a run with a partial rollout.

    prompts: of a step. extra: that are open beside them; none after the last step, so that nothing is
    generated in vain. steps: of the run. first_new: position of the first prompt that was never fed.
    open: positions that were fed and not trained on.
    """

    prompts: int
    extra: int
    steps: int
    first_new: int = 0
    open: set[int] = field(default_factory=set)
    _under_way: set[int] = field(default_factory=set)
    _carried: int = 0
    _lives: int = 0

    @classmethod
    def of(cls, spec: ResolvedSpec) -> "Pools | None":
        """Those of a job with a partial rollout."""
        extra = open_prompts(spec)
        if not extra:
            return None
        return cls(prompts=spec.batch.global_batch_size, extra=extra, steps=spec.steps)

    lost_together: ClassVar[bool] = True

    def begin(self, step: int, *, attempt: int = 0, skipped: int = 0, replicas: int = 1) -> Asked:
        """With the step's round."""
        asked = Schedule.begin(self, step, attempt=attempt, skipped=skipped)
        return replace(asked, round=self.make_round(step))

    def make_round(self, step: int) -> Round:
        """The next step's round. Rounds begin in order, each once the one before has put its groups."""
        groups, carried = self._groups(step), self._carried
        fresh = self._take(groups - carried)
        self._carried = groups - self.prompts
        return Round(
            pool=self._name(step),
            next_pool=self._name(step + 1),
            groups=groups,
            fresh=fresh,
            next_groups=self._groups(step + 1),
        )

    def trained(self, scored: Sequence[Scored], updated: Sequence[Updated]) -> None:
        """Of their prompts, none is open any more."""
        lineages = [report.lineage for report in updated]
        self.trained_on({place for lineage in lineages if lineage for place in lineage.positions})

    def trained_on(self, positions: Iterable[int]) -> None:
        """These were trained on."""
        self.open.difference_update(positions)
        self._under_way &= self.open

    def start_over(self, *, trained: bool = False) -> None:
        """What is under way is lost, and fed again: the next round has only fresh groups."""
        self._under_way.clear()
        self._carried = 0
        self._lives += 1  # a batch's name is never used again

    def state(self) -> PromptState:
        """Open prompts are begun anew."""
        return PromptState(first_new_prompt=self.first_new, open_prompts=sorted(self.open))

    def restore(self, state: PromptState) -> None:
        """As `state` left it."""
        self.first_new, self.open = state.first_new_prompt, set(state.open_prompts)

    def roll_back(self, state: PromptState) -> None:
        """What is under way was drawn by weights that are undone."""
        self.start_over()

    def _take(self, count: int) -> tuple[int, ...]:
        """The first positions that are open and not under way, and then new ones."""
        again = sorted(self.open - self._under_way)[:count]
        new = range(self.first_new, self.first_new + count - len(again))
        self.first_new = new.stop
        taken = (*again, *new)
        self.open.update(taken)
        self._under_way.update(taken)
        return taken

    def _groups(self, step: int) -> int:
        return self.prompts + (self.extra if step < self.steps else 0)

    def _name(self, step: int) -> BatchName:
        return BatchName(kind="pool", step=step, attempt=self._lives)
