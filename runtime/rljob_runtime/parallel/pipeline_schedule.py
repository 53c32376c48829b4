"""Compute the order in which each pipeline rank runs its micro-batches forward and backward.

Called by `pipeline`. One chunk a rank is 1F1B (arXiv:2006.09503), several are its interleaved form
(arXiv:2104.04473), for any number of micro-batches. Without torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Direction = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class PipelineStep:
    """One micro-batch through one chunk of the model. stage: index of the chunk in the full model."""

    direction: Direction
    stage: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class PipelineMessage:
    """A tensor that a step needs from another rank: forward a chunk's input, backward its output's
    gradient."""

    needed_by: PipelineStep
    source: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSchedule:
    """The steps of all ranks. ranks: pipeline ranks; rank r has stages r, ranks + r, 2·ranks + r, …

    chunks: stages of each rank. trains: False for a forward pass alone.
    """

    ranks: int
    chunks: int
    micro_batches: int
    trains: bool = True

    @property
    def stages(self) -> int:
        """The number of chunks of the full model."""
        return self.ranks * self.chunks

    def steps(self, rank: int) -> list[PipelineStep]:
        """Return the rank's steps in order.

        Forward passes run until the first gradient can arrive, then one forward and one backward alternate.
        With several chunks, micro-batches pass through them in rounds of as many as there are ranks. The
        missing micro-batches of the last round are dropped at the end: ranks that dropped them before might
        wait for each other.
        """
        steps = self._steps_of_full_rounds(rank)
        return [step for step in steps if step.micro_batch < self.micro_batches]

    def messages(self, rank: int) -> list[PipelineMessage]:
        """Return the messages that the rank sends, in order; each receiver takes them in this order."""
        messages: list[PipelineMessage] = []
        for step in self.steps(rank):
            target_stage = step.stage + (1 if step.direction == "forward" else -1)
            if 0 <= target_stage < self.stages:
                needed_by = PipelineStep(step.direction, target_stage, step.micro_batch)
                messages.append(PipelineMessage(needed_by, rank, target_stage % self.ranks))
        return messages

    def _steps_of_full_rounds(self, rank: int) -> list[PipelineStep]:
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

    def _order(self, rank: int, direction: Direction) -> list[PipelineStep]:
        stages = [chunk * self.ranks + rank for chunk in range(self.chunks)]
        if direction == "backward":
            stages.reverse()
        size = self.ranks if self.chunks > 1 else 1
        return [
            PipelineStep(direction, stage, micro_batch)
            for first in range(0, self.micro_batches, size)
            for stage in stages
            for micro_batch in range(first, first + size)
        ]


def peak_activations(steps: Sequence[PipelineStep]) -> int:
    """Return the largest number of forward passes whose activations a rank keeps at the same time."""
    live = peak = 0
    for step in steps:
        live += 1 if step.direction == "forward" else -1
        peak = max(peak, live)
    return peak
