"""Dynamic sampling on the driver's side: which prompts a round draws, and what is left over. Pure.

It knows prompts by their positions in the training stream, counted from 0, and no sample. Which groups are
kept is decided by the reward worker (`select_groups`).
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rljob_api.spec.algorithms.dapo import DAPOParams
from rljob_api.topology.devices import most_ahead, most_stale
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.prompts.rounds import CandidateRound
from rljob_runtime.prompts.schedule import Asked, PromptState, Schedule, Scored, Updated
from rljob_runtime.samples.batches import BatchName

LOWEST_KEEP_RATE = 0.1
SMALLEST_SHARE = 4
"""A later round has at least one in so many of a step's prompts."""


@dataclass(slots=True, kw_only=True)
class Step:
    """One that was begun. first_new, again: as `Candidates` had them before. filled: places of its batch,
    drawn: prompts, kept: groups with a signal, left_over: those that are in the next step's batch."""

    first_new: int = 0
    again: list[int] = field(default_factory=list)
    filled: int = 0
    drawn: int = 0
    kept: int = 0
    rounds: int = 0
    left_over: int = 0

    @property
    def keep_rate(self) -> float:
        """Share of the candidates that had a signal."""
        return self.kept / max(self.drawn, 1)


@dataclass(slots=True, kw_only=True)
class Candidates(Schedule):
    """The candidates of a run with dynamic sampling.

    prompts: of a step. replicas: that generate, scorers: of a reward model; a round has as many prompts for
    each. most_rounds: of a step,
    None: no limit. carries: whether groups that are too many go into the next step's batch; else their
    prompts are drawn again. first_new: position of the first prompt that was never drawn. again: positions
    that are drawn once more, before new ones. carried: positions of the groups that lie in the next step's
    batch. under_way: steps that were begun and not trained on. last: the last one that was.
    """

    prompts: int
    steps: int
    most_rounds: int | None
    fills: bool
    carries: bool = True
    scorers: int = 1
    replicas: int = 1
    first_new: int = 0
    again: list[int] = field(default_factory=list)
    carried: list[int] = field(default_factory=list)
    lives: int = 0
    under_way: deque[Step] = field(default_factory=deque)
    last: Step = field(default_factory=Step)

    @classmethod
    def of(cls, spec: ResolvedSpec) -> "Candidates | None":
        """Those of a job with dynamic sampling."""
        params = spec.algorithm.params
        if not isinstance(params, DAPOParams) or params.dynamic_sampling is None:
            return None
        chosen = params.dynamic_sampling
        return cls(
            prompts=spec.batch.global_batch_size,
            steps=spec.steps,
            most_rounds=None if chosen.when_short == "go-on" else chosen.max_rounds,
            fills=chosen.when_short == "fill",
            carries=most_stale(spec) > most_ahead(spec),
            scorers=(spec.reward_model and spec.reward_model.parallelism.data) or 1,
        )

    in_rounds: ClassVar[bool] = True

    lost_together: ClassVar[bool] = True

    @property
    def now(self) -> Step:
        """The step that began last."""
        return self.under_way[-1]

    def begin(self, step: int, *, attempt: int = 0, skipped: int = 0, replicas: int = 1) -> Asked:
        """With the groups that were left over. Positions count on by themselves, over what is skipped."""
        self.replicas = replicas
        begun = Step(first_new=self.first_new, again=self._not_trained, filled=len(self.carried))
        self.under_way.append(begun)
        self.carried = []
        return Schedule.begin(self, step, attempt=self.lives)

    def next_round(self, step: int) -> CandidateRound | None:
        """The next round of the step; None: it is full, or has had all of its rounds."""
        now = self.now
        missing = self.prompts - now.filled
        if missing == 0 or now.rounds == self.most_rounds:
            return None
        now.rounds += 1
        last = now.rounds == self.most_rounds
        first, positions = now.drawn, self._draw(self._wanted(missing))
        now.drawn += len(positions)
        follows = BatchName(kind="train", step=step + 1, attempt=self.lives)
        return CandidateRound(
            rows=BatchName(kind="candidates", step=step, attempt=self.lives * 1000 + now.rounds),
            first=first,
            positions=positions,
            batch=BatchName(kind="train", step=step, attempt=self.lives),
            filled=now.filled,
            missing=missing,
            next_batch=follows if self.carries and step < self.steps else None,
            fill=last and self.fills,
        )

    def selected(
        self, taken: int, kept: int, left_over: Sequence[int], too_many: Sequence[int] = ()
    ) -> None:
        """As `Schedule`'s."""
        self.now.filled += taken
        self.now.kept += kept
        self.now.left_over += len(left_over)
        self.carried += left_over
        self.again += too_many

    def short(self, after: str) -> str:
        """Names what would change it."""
        now = self.now
        if now.filled == self.prompts:
            return ""
        return (
            f"{now.filled} of {self.prompts} groups have a signal after "
            f"{after or f'{now.rounds} rounds'} of dynamic sampling ({now.drawn} drawn, "
            f"{now.keep_rate:.0%} kept); the task is too easy or too hard for the model: change the "
            "data, raise batch.samplesPerPrompt or algorithm.params.dynamicSampling.maxRounds, or set "
            "whenShort: fill"
        )

    def start_over(self, *, trained: bool = False) -> None:
        """The batches that are under way are lost: all but the oldest, where that was trained on all the
        same, are drawn again, and what they left over."""
        kept = [self.under_way.popleft()] if trained and self.under_way else []
        state = self.state()
        self.first_new, self.again = state.first_new_prompt, list(state.open_prompts)
        self.carried, self.under_way = [], deque(kept)
        self.lives += 1  # a batch's name is never used again

    def trained(self, scored: Sequence[Scored], updated: Sequence[Updated]) -> None:
        """The oldest step under way."""
        self.last = self.under_way.popleft()

    def state(self) -> PromptState:
        """Of what was not trained on, and of what was left over, all is drawn again."""
        if self.under_way:
            oldest = self.under_way[0]
            return PromptState(first_new_prompt=oldest.first_new, open_prompts=oldest.again)
        return PromptState(first_new_prompt=self.first_new, open_prompts=self._not_trained)

    def restore(self, state: PromptState) -> None:
        """As `state` left it."""
        self.first_new, self.again = state.first_new_prompt, list(state.open_prompts)

    def roll_back(self, state: PromptState) -> None:
        """What was left over was drawn by weights that are undone."""
        self.start_over()

    def metrics(self) -> dict[str, float]:
        """Of the last step that was trained on."""
        return {
            "dynamic_sampling/keep_rate": self.last.keep_rate,
            "dynamic_sampling/rounds": float(self.last.rounds),
            "dynamic_sampling/left_over": float(self.last.left_over),
        }

    @property
    def _not_trained(self) -> list[int]:
        return [*self.carried, *self.again]

    def _wanted(self, missing: int) -> int:
        """Prompts for so many groups, as many for each replica and at most a step's."""
        wanted = missing
        if self.now.drawn:  # what is too many is not lost, and each round takes its time
            wanted = math.ceil(missing / max(self.now.keep_rate, LOWEST_KEEP_RATE))
            wanted = max(wanted, self.prompts // SMALLEST_SHARE)
        each = math.lcm(self.replicas, self.scorers)
        return min(-(-wanted // each) * each, self.prompts)

    def _draw(self, count: int) -> tuple[int, ...]:
        """Positions, those that are drawn again first."""
        again, self.again = self.again[:count], self.again[count:]
        new = range(self.first_new, self.first_new + count - len(again))
        self.first_new = new.stop
        return (*again, *new)
