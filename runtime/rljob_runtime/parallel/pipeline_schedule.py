"""In which order each pipeline rank runs its micro-batches forward and backward, by arithmetic.

Called by `pipeline`. One chunk a rank is 1F1B (arXiv:2006.09503), several are its interleaved form
(arXiv:2104.04473), for any number of micro-batches. Without torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Step:
    """One micro-batch through one chunk of the model. stage: the chunk's place in the whole model."""

    direction: Direction
    stage: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class Message:
    """What a step needs of another rank: a chunk's input forward, its output's gradient backward."""

    needed_by: Step
    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """All ranks' steps. ranks: pipeline ranks; rank r has stages r, ranks + r, 2·ranks + r, …

    chunks: stages of each rank. trains: False for a forward pass alone.
    """

    ranks: int
    chunks: int
    micro_batches: int
    trains: bool = True

    @property
    def stages(self) -> int:
        """Chunks of the whole model."""
        return self.ranks * self.chunks

    def steps(self, rank: int) -> list[Step]:
        """What the rank does, in order.

        First forward passes until the first gradient can be there, then one of each in turn. With
        several chunks, micro-batches go through them in rounds of as many as there are ranks; the last
        round's missing ones are left out at the end, since ranks that left them out before might
        wait for each other.
        """
        steps = self._steps_of_whole_rounds(rank)
        return [step for step in steps if step.micro_batch < self.micro_batches]

    def messages(self, rank: int) -> list[Message]:
        """What the rank sends, in order; ranks receive of each other in this order as well."""
        found: list[Message] = []
        for step in self.steps(rank):
            to = step.stage + (1 if step.direction == "forward" else -1)
            if 0 <= to < self.stages:
                needed_by = Step(step.direction, to, step.micro_batch)
                found.append(Message(needed_by, rank, to % self.ranks))
        return found

    def _steps_of_whole_rounds(self, rank: int) -> list[Step]:
        forward = self._order(rank, "forward")
        if not self.trains:
            return forward
        backward = self._order(rank, "backward")
        later = self.ranks - 1 - rank
        ahead = later if self.chunks == 1 else 2 * later + (self.chunks - 1) * self.ranks
        ahead = min(ahead, len(forward))
        steady = zip(forward[ahead:], backward, strict=False)
        steps = [*forward[:ahead], *(step for pair in steady for step in pair)]
        return [*steps, *backward[len(forward) - ahead :]]

    def _order(self, rank: int, direction: Direction) -> list[Step]:
        stages = [chunk * self.ranks + rank for chunk in range(self.chunks)]
        if direction == "backward":
            stages.reverse()
        size = self.ranks if self.chunks > 1 else 1
        return [
            Step(direction, stage, micro_batch)
            for first in range(0, self.micro_batches, size)
            for stage in stages
            for micro_batch in range(first, first + size)
        ]


def most_held(steps: Sequence[Step]) -> int:
    """Forward passes whose activations a rank keeps at the same time, at most."""
    held = most = 0
    for step in steps:
        held += 1 if step.direction == "forward" else -1
        most = max(most, held)
    return most
