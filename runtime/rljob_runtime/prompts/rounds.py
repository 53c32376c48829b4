"""Generation that makes a step's batch in another way than prompt by prompt: by whom, of what, into which
batches.

Made by a schedule, carried out by the feeder, the rollout devices and the reward worker.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_runtime.samples.batches import BatchName


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One step's generation, or a part of it: groups of `pool` go into a batch, and the others into
    `next_pool`.

    groups: of `pool`. fresh: positions of those that the feeder puts there, at its last places; the
    others have come from the round before. next_groups: of `next_pool`, once it is full. first: number of
    the first group in the batch.
    """

    pool: BatchName
    next_pool: BatchName
    groups: int
    fresh: tuple[int, ...]
    next_groups: int
    first: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRound:
    """One round. rows: the batch of its own that its groups are made in. groups: their numbers in the step.
    positions: of the prompts that it begins. pool: of a partial rollout, whose groups that end are its
    own. batch: the step's, which lacks `missing` groups from place `filled` on. next_batch: takes what is
    kept beyond these; None: nothing does. fill: whether groups without a signal take what places are
    left.
    """

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
class Selected:
    """What became of a round's groups. taken: into the step's batch. left_over: into the next one's. lost:
    with a signal, but too old for the next step, or there is none. silent: without a signal. kept: how
    many had one."""

    taken: tuple[int, ...] = ()
    left_over: tuple[int, ...] = ()
    lost: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    kept: int = 0

    def at(self, positions: Sequence[int]) -> "Selected":
        """The same of groups that stand at these positions, one by one."""
        return Selected(
            taken=tuple(positions[i] for i in self.taken),
            left_over=tuple(positions[i] for i in self.left_over),
            lost=tuple(positions[i] for i in self.lost),
            silent=tuple(positions[i] for i in self.silent),
            kept=self.kept,
        )
