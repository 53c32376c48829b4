"""Dynamic sampling on the driver's side: which prompts a round draws, and what is left over. Pure.

It knows prompts by their positions in the training stream, counted from 0, and no sample. Which groups are
kept is decided by the reward worker (`select_groups`).
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
from rljob_runtime.prompts.rounds import CandidateRound, Selected
from rljob_runtime.prompts.schedule import Asked, PromptState, Schedule, Updated
from rljob_runtime.samples.batches import BatchName

LOWEST_KEEP_RATE = 0.1
SMALLEST_SHARE = 4
"""A later round has at least one in so many of a step's prompts."""


@dataclass(slots=True, kw_only=True)
class Step:
    """One that was begun. before: what was open then. filled: places of its batch, drawn: groups that were
    made, kept: those with a signal, left_over: those that are in the next step's batch."""

    before: PromptState = field(default_factory=PromptState)
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
    each. most_rounds: of a step, None: no limit. pools: of a partial rollout, where each round is one of
    theirs. carried: positions of groups that lie in the next step's batch. under_way: steps that were begun
    and not trained on. last: the last one that was.
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
    under_way: deque[Step] = field(default_factory=deque)
    last: Step = field(default_factory=Step)

    @classmethod
    def of(cls, spec: ResolvedSpec) -> "Candidates | None":
        """Those of a job with dynamic sampling."""
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
    def now(self) -> Step:
        """The step that began last."""
        return self.under_way[-1]

    def begin(self, step: int, *, attempt: int = 0, skipped: int = 0, replicas: int = 1) -> Asked:
        """With the groups that were left over. Positions count on by themselves, over what is skipped."""
        self.replicas = replicas
        self.under_way.append(Step(before=self.account.state(), filled=len(self.carried)))
        self.account.close(self.carried)
        self.carried = ()
        return Schedule.begin(self, step, attempt=self.lives)

    def next_round(self, step: int) -> CandidateRound | None:
        """The next round of the step; None: it is full, or has had all of its rounds."""
        now = self.now
        missing = self.prompts - now.filled
        if missing == 0 or now.rounds == self.most_rounds:
            return None
        now.rounds += 1
        pool, first = None, now.drawn
        if self.pools:
            pool = replace(self.pools.make_round(step), first=first)
            positions, made = pool.fresh, self.prompts
        else:
            positions = self.account.take(self._wanted(missing))
            made = len(positions)
        now.drawn += made
        follows = BatchName(kind="train", step=step + 1, attempt=self.lives)
        return CandidateRound(
            rows=BatchName(kind="candidates", step=step, attempt=self.lives * 1000 + now.rounds),
            groups=range(first, first + made),
            positions=positions,
            pool=pool,
            batch=BatchName(kind="train", step=step, attempt=self.lives),
            filled=now.filled,
            missing=missing,
            next_batch=follows if step < self.steps else None,
            fill=now.rounds == self.most_rounds and self.fills,
        )

    def selected(self, found: Selected) -> None:
        """As `Schedule`'s."""
        self.now.filled += len(found.taken)
        self.now.kept += found.kept
        self.now.left_over += len(found.left_over)
        self.carried += found.left_over
        self.account.close((*found.taken, *found.silent))
        self.account.give_back(found.lost)

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
        self.account.restore(self.state())
        self.carried, self.under_way = (), deque(kept)
        self.lives += 1  # a batch's name is never used again
        if self.pools:
            self.pools.start_over()

    def trained(self, updated: Sequence[Updated]) -> None:
        """The oldest step under way."""
        self.last = self.under_way.popleft()

    def state(self) -> PromptState:
        """Of what was not trained on, and of what was left over, all is drawn again."""
        return self.under_way[0].before if self.under_way else self.account.state()

    def restore(self, state: PromptState) -> None:
        """As `state` left it."""
        self.account.restore(state)

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

    def _wanted(self, missing: int) -> int:
        """Prompts for so many groups, as many for each replica and at most a step's."""
        wanted = missing
        if self.now.drawn:  # what is too many is not lost, and each round takes its time
            wanted = math.ceil(missing / max(self.now.keep_rate, LOWEST_KEEP_RATE))
            wanted = max(wanted, self.prompts // SMALLEST_SHARE)
        each = math.lcm(self.replicas, self.scorers)
        return min(-(-wanted // each) * each, self.prompts)
