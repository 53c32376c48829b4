"""The generate state of a partial rollout: open groups in, complete groups and open ones out.

The device worker calls it once per step in place of `generate`, on all devices of a replica. A group is put
into the step's batch as soon as its last sample has ended. Rewards and the update can therefore begin while
others are still generated. `open_groups` decides which groups these are, and which continue in the next
step's pool.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from rljob_api.topology.devices import most_stale
from rljob_api.topology.resolved import ResolvedSpec
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.prompts.open_groups import OpenGroups
from rljob_runtime.prompts.pool_rows import (
    POOL_STATES,
    OpenGroup,
    PoolSample,
    batch_rows,
    pool_rows,
    read_pool,
)
from rljob_runtime.prompts.rounds import Round
from rljob_runtime.record.reports import GameFigures, GenerateReport, ToolFigures
from rljob_runtime.record.spans import StageSpan, Stopwatch
from rljob_runtime.rollout.rollout_engine import (
    GameSettings,
    Generated,
    PromptGroup,
    Sampling,
    ToolSettings,
)
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import (
    PICTURE_COLUMNS,
    evaluation_states,
    state_graph,
    written_bytes,
)
from rljob_runtime.samples.seeds import derive_seed
from rljob_runtime.task.environments.environment import Outcome
from rljob_runtime.task.environments.game_columns import game_of, outcome_of, outcome_row
from rljob_runtime.worker.generate import game_figures, own_work, picture_figures, tool_figures
from rljob_runtime.worker.rollout_replica import RolloutReplica

if TYPE_CHECKING:
    from rljob_runtime.samples.pictures import Picture
    from rljob_runtime.task.pictures.picture_columns import PictureReader

_, PICTURE_SIZES = PICTURE_COLUMNS
Figures = TypeVar("Figures", ToolFigures, GameFigures)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRolloutState:
    """Works on one replica's share of each step's pool.

    route_bytes: of a token's routes, if they are recorded. pictures: reads those of prompts that have any.
    """

    replica: RolloutReplica
    dock: DockClient
    spec: ResolvedSpec
    route_bytes: int = 0
    pictures: "PictureReader | None" = None

    def run(
        self, batch: BatchName, pool_round: Round, sampling: Sampling, share: tuple[int, int]
    ) -> GenerateReport:
        """Complete the share's part of the batch, and put the other groups into the next pool.

        share: (number of the replica, number of replicas). Raises DockTimeout if groups do not arrive, and
        DockError on all devices that generate together if one of them cannot read or write.
        """
        started, replica = time.time(), self.replica
        before = replica.generating.seconds()
        work: _ReplicaStep | None = None
        with replica.fail_together():
            if replica.leads:
                work = self._begin(batch, pool_round, share)
        requests = work.next_requests() if work else []
        while True:
            replica.generate(requests, sampling, work.add if work else _ignore_samples)
            if not replica.any_of(work is not None and not work.choice.full):
                break
            requests = work.next_requests() if work and not work.choice.full else []
        with replica.fail_together():
            if work:
                work.put_going_on()
        if work is None:
            return GenerateReport(span=StageSpan.since(started))
        return work.report(started, replica.generating.seconds() - before, sampling)

    def _begin(self, batch: BatchName, pool_round: Round, share: tuple[int, int]) -> "_ReplicaStep":
        """Claim the share's groups, and put those that are already complete into the batch."""
        timeout = self.spec.flow.stage_timeout_seconds
        claim = self.dock.claim(str(pool_round.pool), share=share, timeout_seconds=timeout)
        shown = self.pictures.columns(self.dock, claim.rows) if self.pictures else {}
        work = self._work(batch, pool_round, read_pool(self.dock, claim.rows, shown=shown))
        work.put_complete(group for group in work.groups if work.groups[group].complete)
        return work

    def _work(
        self, batch: BatchName, pool_round: Round, groups: dict[int, OpenGroup]
    ) -> "_ReplicaStep":
        partial, sizes = self.spec.flow.partial_rollout, self.spec.batch
        assert partial is not None, "this state is of a partial rollout"
        version = self.replica.engine.version
        choice = OpenGroups(
            step=batch.step,
            max_staleness=most_stale(self.spec),
            prompts=sizes.global_batch_size,
            budget=partial.budget_tokens,
            oldest={pool_index: group.oldest(version) for pool_index, group in groups.items()},
        )
        return _ReplicaStep(
            dock=self.dock,
            spec=self.spec,
            batch=batch,
            pool_round=pool_round,
            groups=groups,
            choice=choice,
            route_bytes=self.route_bytes,
            pictures=self.pictures,
        )


@dataclass(slots=True, kw_only=True)
class _ReplicaStep:
    """One replica's groups of one step.

    members: index of each sample in pool and group by its uid. generated: samples, and parts of them, of this
    step. shown: pictures by the prompt's position.
    """

    dock: DockClient
    spec: ResolvedSpec
    batch: BatchName
    pool_round: Round
    groups: dict[int, OpenGroup]
    choice: OpenGroups
    route_bytes: int
    pictures: "PictureReader | None"
    members: dict[str, tuple[int, int]] = field(init=False)
    generated: list[Generated] = field(default_factory=list)
    shown: "dict[int, list[Picture]]" = field(default_factory=dict)
    putting: Stopwatch = field(default_factory=Stopwatch)

    def __post_init__(self) -> None:
        self.members = {
            row.uid: (pool_index, number)
            for pool_index, group in self.groups.items()
            for number, row in enumerate(group.rows)
        }

    def next_requests(self) -> list[PromptGroup]:
        """Return the engine's next requests, the oldest groups first; samples in progress are separate
        requests."""
        requests: list[PromptGroup] = []
        for pool_index in self.choice.unfinished:
            group, budget = self.groups[pool_index], self.choice.budget_of(pool_index)
            left = [number for number, sample in enumerate(group.samples) if not sample.end]
            fresh = [number for number in left if not group.samples[number].tokens]
            begun = [[number] for number in left if group.samples[number].tokens]
            requests += [
                self._prompt_group(group, numbers, budget) for numbers in (fresh, *begun) if numbers
            ]
        return requests

    def add(self, finished: Sequence[Generated]) -> None:
        """Record finished samples and parts, and put the groups that they complete."""
        complete = []
        for sample_part in finished:
            pool_index, number = self.members[sample_part.uid]
            sample = self.groups[pool_index].samples[number]
            sample.add(
                sample_part.token_ids, sample_part.logprobs, sample_part.versions, sample_part.drawn
            )
            sample.ends = sample_part.ends
            sample.routes += sample_part.routes
            if sample_part.outcome is not None:
                sample.outcome = outcome_row(sample_part.outcome).tobytes()
            self.generated.append(sample_part)
            if sample_part.finish != "budget":
                sample.end = sample_part.finish
                if self.groups[pool_index].complete:
                    complete.append(pool_index)
        with self.putting.running():
            self.put_complete(complete)

    def put_complete(self, pool_indices: Iterable[int]) -> None:
        """Put complete groups into the batch, as far as it has room for them."""
        reserve = written_bytes(self.spec, states=self._later_states)
        rows: list[NewRow] = []
        taken: list[OpenGroup] = []
        for pool_index in pool_indices:
            slot = self.choice.completed(pool_index)
            if slot is not None:
                taken.append(self.groups[pool_index])
                rows += batch_rows(
                    self.batch,
                    self.pool_round.first + slot,
                    self.groups[pool_index],
                    reserve_bytes=reserve,
                )
        self._put(self.batch, rows, self.spec.batch.global_batch_size, self._later_states, taken)

    def put_going_on(self) -> None:
        """Put all other groups into the next pool."""
        rows: list[NewRow] = []
        going_on = self.choice.going_on()
        for pool_index, after in going_on.items():
            group = self.groups[pool_index]
            rows += pool_rows(
                self.pool_round.next_pool,
                after,
                group.columns,
                group.samples,
                version=self.choice.oldest[pool_index],
            )
        taken = [self.groups[pool_index] for pool_index in going_on]
        self._put(self.pool_round.next_pool, rows, self.pool_round.next_groups, POOL_STATES, taken)

    def report(self, started: float, seconds: float, sampling: Sampling) -> GenerateReport:
        """Return sums over trained samples; for calls and moves, over those of this step. seconds: in the
        engine."""
        trained = [self.groups[pool_index] for pool_index in self.choice.trained]
        samples = [sample for group in trained for sample in group.samples]
        tools = self._tools(samples, sampling.tools) if sampling.tools else None
        games = self._games(samples, sampling.games) if sampling.games else None
        device_work = own_work(self.generated, seconds - self.putting.seconds(), tools, games)
        return GenerateReport(
            samples=len(samples),
            prompt_tokens=sum(len(group.prompt) * len(group.samples) for group in trained),
            shown=picture_figures(
                self.pictures,
                (
                    (g.prompt, len(g.columns[PICTURE_SIZES].reshape(-1, 2)), len(g.samples))
                    for g in trained
                ),
            ),
            response_tokens=sum(len(sample_part.logprobs) for sample_part in self.generated),
            sample_tokens=sum(len(sample.logprobs) for sample in samples),
            lengths=Counter(len(sample.logprobs) for sample in samples),
            clipped=sum(sample.end == "length" for sample in samples),
            going_on=len(self.groups) - len(trained),
            tools=tools,
            games=games,
            span=StageSpan.since(started, device_work),
        )

    def _tools(self, trained: Sequence[PoolSample], tools: ToolSettings) -> ToolFigures:
        return _with_trained_samples(tool_figures(self.generated, tools), trained)

    def _games(self, trained: Sequence[PoolSample], games: GameSettings) -> GameFigures:
        errors = sum(bool(outcome_of(sample.outcome)[1]) for sample in trained)
        done = sum(sample.end == "stop" for sample in trained) - errors
        figures = _with_trained_samples(game_figures(self.generated, games), trained)
        return replace(figures, done=done, errors=errors)

    @property
    def _later_states(self) -> tuple[str, ...]:
        """Return the states that rows of the batch pass."""
        candidates = self.batch.kind == "candidates"
        names = evaluation_states(self.spec) if candidates else state_graph(self.spec).names
        return tuple(name for name in names if name not in POOL_STATES)

    def _put(
        self,
        name: BatchName,
        rows: Sequence[NewRow],
        total_groups: int,
        states: tuple[str, ...],
        taken: Sequence[OpenGroup],
    ) -> None:
        """Put rows into a batch or pool, and acknowledge the rows that they were built from."""
        if not rows:
            return
        total = total_groups * self.spec.batch.samples_per_prompt
        self.dock.put_rows(str(name), rows, total=total, states=states)
        self.dock.acknowledge([row for group in taken for row in group.rows])

    def _prompt_group(
        self, group: OpenGroup, numbers: Sequence[int], budget: int | None
    ) -> PromptGroup:
        begun = group.samples[numbers[0]]  # copied below, since its lists grow when the sample ends
        played = self.spec.data.environment is not None
        return PromptGroup(
            group=group.rows[0].group,
            token_ids=group.prompt,
            uids=[group.rows[number].uid for number in numbers],
            seeds=[self._seed(group, group.rows[number].sample) for number in numbers],
            begun=list(begun.tokens),
            drawn=list(begun.drawn),
            ends=list(begun.ends),
            turn=begun.turn,
            budget=budget,
            game=game_of(group.columns["task"]) if played else None,
            outcome=_so_far(begun.outcome) if begun.outcome else None,
            pictures=self._shown(group),
            routed=len(begun.routes) // self.route_bytes if self.route_bytes else 0,
        )

    def _shown(self, group: OpenGroup) -> "list[Picture]":
        """Return the group's pictures, created once for all of its samples."""
        if self.pictures is None:
            return []
        if group.position not in self.shown:
            self.shown[group.position] = self.pictures.make_pictures(group.columns)
        return self.shown[group.position]

    def _seed(self, group: OpenGroup, sample: int) -> int:
        """Return the sample's seed, equal to that of a run which finishes every sample in its step."""
        step, index = divmod(group.position, self.spec.batch.global_batch_size)
        return derive_seed(self.spec.seed, "train", step + 1, index, sample)


def _so_far(outcome: bytes) -> Outcome:
    """Return the outcome of a game that continues."""
    return Outcome(reward=outcome_of(outcome)[0], done=False)


def _with_trained_samples(figures: Figures, samples: Sequence[PoolSample]) -> Figures:
    """Return the figures with the sums of these samples, all of which have ended."""
    return replace(
        figures,
        tokens=sum(len(sample.tokens) - len(sample.logprobs) for sample in samples),
        turns=sum(sample.turns for sample in samples),
        cut=sum(sample.end == "turns" for sample in samples),
    )


def _ignore_samples(_: Sequence[Generated]) -> None:
    """Ignore samples on devices that do not lead."""
