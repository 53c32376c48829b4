"""Dynamic sampling on the driver's side: which prompts a round draws, and what is left over. Pure.

It knows prompts by their positions in the training stream, counted from 0, and no sample. Which groups are
kept is decided by the reward worker (`select_groups`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from rljob_api.spec.algorithms.dapo import DAPOParams
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.prompts.rounds import CandidateRound
from rljob_runtime.prompts.schedule import Asked, PromptState, Schedule
from rljob_runtime.samples.batches import BatchName

LOWEST_KEEP_RATE = 0.1
SMALLEST_SHARE = 4
"""A later round has at least one in so many of a step's prompts."""


@dataclass(slots=True, kw_only=True)
class Candidates(Schedule):
    """The candidates of a run with dynamic sampling.

    prompts: of a step. replicas: that generate; a round has as many prompts for each. most_rounds: of a step,
    None: no limit. first_new: position of the first prompt that was never drawn. again: positions that are
    drawn once more, before new ones. carried: positions of the groups that lie in the next step's batch.
    """

    prompts: int
    steps: int
    most_rounds: int | None
    fills: bool
    replicas: int = 1
    first_new: int = 0
    again: list[int] = field(default_factory=list)
    carried: list[int] = field(default_factory=list)
    lives: int = 0
    filled: int = 0
    drawn: int = 0
    kept: int = 0
    rounds: int = 0
    _begun: tuple[int, list[int]] = (0, [])

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
        )

    in_rounds: ClassVar[bool] = True

    def begin(self, step: int, *, attempt: int = 0, skipped: int = 0, replicas: int = 1) -> Asked:
        """With the groups that were left over. Positions count on by themselves, over what is skipped."""
        self.replicas = replicas
        self._begun = (self.first_new, [*self.carried, *self.again])
        self.filled, self.carried = len(self.carried), []
        self.drawn = self.kept = self.rounds = 0
        return Schedule.begin(self, step, attempt=self.lives)

    def next_round(self, step: int) -> CandidateRound | None:
        """The next round of the step; None: it is full, or has had all of its rounds."""
        missing = self.prompts - self.filled
        if missing == 0 or self.rounds == self.most_rounds:
            return None
        self.rounds += 1
        last = self.rounds == self.most_rounds
        first, positions = self.drawn, self._draw(self._wanted(missing))
        self.drawn += len(positions)
        follows = BatchName(kind="train", step=step + 1, attempt=self.lives)
        return CandidateRound(
            rows=BatchName(kind="candidates", step=step, attempt=self.lives * 1000 + self.rounds),
            first=first,
            positions=positions,
            batch=BatchName(kind="train", step=step, attempt=self.lives),
            filled=self.filled,
            missing=missing,
            next_batch=follows if step < self.steps else None,
            fill=last and self.fills,
        )

    def selected(self, taken: int, kept: int, left_over: Sequence[int]) -> None:
        """What a round gave. taken: groups that went into the step's batch, kept: with a signal, left_over:
        positions of those that went into the next step's."""
        self.filled += taken
        self.kept += kept
        self.carried += left_over

    def short(self, after: str) -> str:
        """Names what would change it."""
        if self.filled == self.prompts:
            return ""
        return (
            f"{self.filled} of {self.prompts} groups have a signal after "
            f"{after or f'{self.rounds} rounds'} of dynamic sampling ({self.drawn} drawn, "
            f"{self.keep_rate:.0%} kept); the task is too easy or too hard for the model: change the "
            "data, raise batch.samplesPerPrompt or algorithm.params.dynamicSampling.maxRounds, or set "
            "whenShort: fill"
        )

    def start_over(self, *, trained: bool = False) -> None:
        """The step's batches are lost: unless it was trained on, all of it is drawn again, and what was left
        over for the next step in any case."""
        if trained:
            self.again = [*self.carried, *self.again]
        else:
            self.first_new, self.again = self._begun[0], list(self._begun[1])
        self.carried = []
        self.lives += 1  # a batch's name is never used again

    def state(self) -> PromptState:
        """What was left over is drawn again."""
        again = [*self.carried, *self.again]
        return PromptState(first_new_prompt=self.first_new, open_prompts=again)

    def restore(self, state: PromptState) -> None:
        """As `state` left it."""
        self.first_new, self.again = state.first_new_prompt, list(state.open_prompts)

    def roll_back(self, state: PromptState) -> None:
        """What was left over was drawn by weights that are undone."""
        self.start_over(trained=True)

    @property
    def keep_rate(self) -> float:
        """Share of the step's candidates that had a signal."""
        return self.kept / max(self.drawn, 1)

    def metrics(self) -> dict[str, float]:
        """Of the last step."""
        return {
            "dynamic_sampling/keep_rate": self.keep_rate,
            "dynamic_sampling/rounds": float(self.rounds),
            "dynamic_sampling/left_over": float(len(self.carried)),
        }

    def _wanted(self, missing: int) -> int:
        """Prompts for so many groups, as many for each replica and at most a step's."""
        wanted = missing
        if self.drawn:  # what is too many is not lost, and each round takes its time
            wanted = math.ceil(missing / max(self.keep_rate, LOWEST_KEEP_RATE))
            wanted = max(wanted, self.prompts // SMALLEST_SHARE)
        return min(-(-wanted // self.replicas) * self.replicas, self.prompts)

    def _draw(self, count: int) -> tuple[int, ...]:
        """Positions, those that are drawn again first."""
        again, self.again = self.again[:count], self.again[count:]
        new = range(self.first_new, self.first_new + count - len(again))
        self.first_new = new.stop
        return (*again, *new)
