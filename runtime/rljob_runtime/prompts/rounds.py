"""Generation that makes a step's batch in another way than prompt by prompt: by whom, of what, into which
batches.

Made by a schedule, carried out by the feeder, the rollout devices and the reward worker.
"""

from dataclasses import dataclass

from rljob_runtime.samples.batches import BatchName


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One step's generation: groups of `pool` go into the step's batch, and the others into `next_pool`.

    groups: of `pool`. fresh: positions of those that the feeder puts there, at its last places; the
    others have come from the round before. next_groups: of `next_pool`, once it is full.
    """

    pool: BatchName
    next_pool: BatchName
    groups: int
    fresh: tuple[int, ...]
    next_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRound:
    """One round. rows: the batch of its own that its groups are made in. first: number of its first group
    in the step. positions: of its prompts. batch: the step's, which lacks `missing` groups from place
    `filled` on. next_batch: takes what is kept beyond these; None: nothing does. fill: whether groups
    without a signal take what places are left.
    """

    rows: BatchName
    first: int
    positions: tuple[int, ...]
    batch: BatchName
    filled: int
    missing: int
    next_batch: BatchName | None
    fill: bool
