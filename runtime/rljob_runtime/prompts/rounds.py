"""Describe generation that fills a step's batch in rounds: the prompts it begins and the batches it
writes to.

A schedule creates rounds; the feeder, the rollout devices and the reward worker carry them out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_runtime.samples.batches import BatchName


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One step's generation, or one round of it: some groups of `pool` go into a batch, and the others
    into `next_pool`.

    groups: number of groups in `pool`. fresh: positions of the prompts that the feeder adds at the end of
    the pool; the other groups come from the round before. next_groups: number of groups in `next_pool`
    once it is full. first: number of the first group in the batch.
    """

    pool: BatchName
    next_pool: BatchName
    groups: int
    fresh: tuple[int, ...]
    next_groups: int
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRound:
    """One round of dynamic sampling. rows: the batch that holds only this round's groups. groups:
    their numbers in the step. positions: those of the prompts that it begins. pool: the partial
    rollout round whose finished groups it takes. batch: the step's batch, which lacks `missing` groups
    from index `filled` on. next_batch: receives surplus groups with a signal; None: they are dropped.
    fill: whether groups without a signal may fill the remaining places."""

    rows: BatchName
    groups: range
    positions: tuple[int, ...]
    pool: Round | None
    batch: BatchName
    filled: int
    missing: int
    next_batch: BatchName | None
    fill: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The outcome of a round's groups. taken: those put into the step's batch. left_over: those put
    into the next step's batch. lost: groups with a signal that are too old for the next step, or that
    have no next step. silent: groups without a signal. num_with_signal: number of groups that had one."""

    taken: tuple[int, ...] = ()
    left_over: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    num_with_signal: int = 0

    def with_positions(self, positions: Sequence[int]) -> "Selection":
        """Return this selection with each group's index replaced by its entry in `positions`."""
        return Selection(
            taken=tuple(positions[i] for i in self.taken),
            left_over=tuple(positions[i] for i in self.left_over),
            lost=tuple(positions[i] for i in self.lost),
            silent=tuple(positions[i] for i in self.silent),
            num_with_signal=self.num_with_signal,
        )
