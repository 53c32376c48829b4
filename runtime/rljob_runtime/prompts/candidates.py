"""Plan dynamic sampling on the driver's side: the prompts that each round draws, and the surplus. Pure.

Prompts are identified by their positions in the training stream, counted from 0. It reads no samples: the
reward worker selects the groups to train on (`select_groups`).
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from rljob_api.spec.algorithms.dapo import DAPOParams
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.prompts.open_prompts import OpenPrompts
from rljob_runtime.prompts.pools import Pools
from rljob_runtime.prompts.rounds import CandidateRound, Selection
from rljob_runtime.prompts.schedule import BatchRequest, PromptSchedule, PromptState, UpdateSummary
from rljob_runtime.samples.batches import BatchName

LOWEST_KEEP_RATE = 0.1
SMALLEST_SHARE = 4
"""A later round draws at least a step's number of prompts divided by this."""


@dataclass(slots=True, kw_only=True)
class CandidateStep:
    """A step that was begun. before: the prompts that were open when it began. filled: number of
    groups in its batch. drawn: number of groups generated. with_signal: how many of these had a
    signal. left_over: how many went into the next batch."""

    before: PromptState = field(default_factory=PromptState)
    filled: int = 0
    drawn: int = 0
    with_signal: int = 0
    rounds: int = 0
    left_over: int = 0

    @property
    def keep_rate(self) -> float:
        """Return the share of the candidates that had a signal."""
        return self.with_signal / max(self.drawn, 1)


@dataclass(slots=True, kw_only=True)
class Candidates(PromptSchedule):
    """The schedule of a run with dynamic sampling.

    prompts: number of prompts of a step. replicas: number of generating replicas. scorers: replicas of a
    reward model; a round gives each of them equally many prompts. most_rounds: limit for a step, None: no
    limit. pools: those of a partial rollout, where each candidate round is one of its rounds. carried:
    positions of groups that are already in the next step's batch. under_way: steps that were begun and
    not trained on. last: the step that was trained on last.
    """

    prompts: int
    steps: int
    most_rounds: int | None
    fills: bool
    scorers: int = 1
    replicas: int = 1
    account: OpenPrompts = field(default_factory=OpenPrompts)
    pools: Pools | None = None
    carried: tuple[int, ...] = ()
    lives: int = 0
    under_way: deque[CandidateStep] = field(default_factory=deque)
    last: CandidateStep = field(default_factory=CandidateStep)

    @classmethod
    def of(cls, spec: ResolvedSpec) -> "Candidates | None":
        """Return the schedule of a job with dynamic sampling, or None for other jobs."""
        params = spec.algorithm.params
        if not isinstance(params, DAPOParams) or params.dynamic_sampling is None:
            return None
        chosen, account = params.dynamic_sampling, OpenPrompts()
        return cls(
            prompts=spec.batch.global_batch_size,
            steps=spec.steps,
            most_rounds=None if chosen.when_short == "go-on" else chosen.max_rounds,
            fills=chosen.when_short == "fill",
            scorers=(spec.reward_model and spec.reward_model.parallelism.data) or 1,
            account=account,
            pools=Pools.of(spec, several=True, account=account),
        )

    in_rounds: ClassVar[bool] = True

    lost_together: ClassVar[bool] = True

    @property
    def current(self) -> CandidateStep:
        """Return the step that began last."""
        return self.under_way[-1]

    def begin(
        self, step: int, *, attempt: int = 0, skipped: int = 0, replicas: int = 1
    ) -> BatchRequest:
        """Begin a step with the groups that were left over. Skipped steps do not change which
        positions follow."""
        self.replicas = replicas
        self.under_way.append(CandidateStep(before=self.account.state(), filled=len(self.carried)))
        self.account.close(self.carried)
        self.carried = ()
        return PromptSchedule.begin(self, step, attempt=self.lives)

    def next_round(self, step: int) -> CandidateRound | None:
        """Return the step's next round, or None if its batch is full or all of its rounds were used."""
        current = self.current
        missing = self.prompts - current.filled
        if missing == 0 or current.rounds == self.most_rounds:
            return None
        current.rounds += 1
        pool, first = None, current.drawn
        if self.pools:
            pool = replace(self.pools.make_round(step), first=first)
            positions, num_groups = pool.fresh, self.prompts
        else:
            positions = self.account.take(self._num_prompts(missing))
            num_groups = len(positions)
        current.drawn += num_groups
        next_batch = BatchName(kind="train", step=step + 1, attempt=self.lives)
        return CandidateRound(
            rows=BatchName(
                kind="candidates", step=step, attempt=self.lives * 1000 + current.rounds
            ),
            groups=range(first, first + num_groups),
            positions=positions,
            pool=pool,
            batch=BatchName(kind="train", step=step, attempt=self.lives),
            filled=current.filled,
            missing=missing,
            next_batch=next_batch if step < self.steps else None,
            fill=current.rounds == self.most_rounds and self.fills,
        )

    def record_selection(self, selection: Selection) -> None:
        """Record which groups of a round were selected, and return lost prompts to the open ones."""
        self.current.filled += len(selection.taken)
        self.current.with_signal += selection.num_with_signal
        self.current.left_over += len(selection.left_over)
        self.carried += selection.left_over
        self.account.close((*selection.taken, *selection.silent))
        self.account.give_back(selection.lost)

    def shortage(self, after: str) -> str:
        """Explain the shortage and name the settings that would change it."""
        current = self.current
        if current.filled == self.prompts:
            return ""
        return (
            f"{current.filled} of {self.prompts} groups have a signal after "
            f"{after or f'{current.rounds} rounds'} of dynamic sampling ({current.drawn} drawn, "
            f"{current.keep_rate:.0%} kept); the task is too easy or too hard for the model: change the "
            "data, raise batch.samplesPerPrompt or algorithm.params.dynamicSampling.maxRounds, or set "
            "whenShort: fill"
        )

    def start_over(self, *, trained: bool = False) -> None:
        """Discard all pending batches, and draw their prompts and their surplus groups again. The
        oldest is retained if it was trained on nevertheless."""
        retained = [self.under_way.popleft()] if trained and self.under_way else []
        self.account.restore(self.state())
        self.carried, self.under_way = (), deque(retained)
        self.lives += 1  # a batch's name is never used again
        if self.pools:
            self.pools.start_over()

    def finish_step(self, reports: Sequence[UpdateSummary]) -> None:
        """Mark the oldest step under way as trained."""
        self.last = self.under_way.popleft()

    def state(self) -> PromptState:
        """Return the prompts that were open before the oldest step under way. Prompts not trained on,
        or left over, are drawn again."""
        return self.under_way[0].before if self.under_way else self.account.state()

    def restore(self, state: PromptState) -> None:
        """Continue from a state that `state` returned."""
        self.account.restore(state)

    def roll_back(self, state: PromptState) -> None:
        """Discard all pending batches, since discarded weights drew the groups left over."""
        self.start_over()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last step that was trained on."""
        return {
            "dynamic_sampling/keep_rate": self.last.keep_rate,
            "dynamic_sampling/rounds": float(self.last.rounds),
            "dynamic_sampling/left_over": float(self.last.left_over),
        }

    def _num_prompts(self, missing: int) -> int:
        """Return how many prompts to draw for `missing` groups: equally many for each replica, and at
        most those of a step."""
        needed = missing
        if self.current.drawn:  # surplus groups are carried over, and every round costs time
            needed = math.ceil(missing / max(self.current.keep_rate, LOWEST_KEEP_RATE))
            needed = max(needed, self.prompts // SMALLEST_SHARE)
        multiple = math.lcm(self.replicas, self.scorers)
        return min(-(-needed // multiple) * multiple, self.prompts)
