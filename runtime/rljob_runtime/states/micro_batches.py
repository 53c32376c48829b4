"""Samples cut into micro-batches as they come: those that can move the weights and the others apart.

Called by `training`. The cut depends on the samples and their order alone, not on when they came.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch.distributed import ProcessGroup

from rljob_runtime.backends.collectives import max_over_ranks
from rljob_runtime.engines.accumulation import NO_SAMPLES
from rljob_runtime.sample import SampleBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """teaches: False where the gradient is known to be zero."""

    samples: SampleBatch
    teaches: bool


@dataclass(slots=True, kw_only=True)
class MicroBatches:
    """Micro-batches of `size` groups. all_teach: the loss has a term beside the advantages."""

    size: int
    all_teach: bool
    _waiting: dict[bool, list[SampleBatch]] = field(
        default_factory=lambda: {True: [], False: []}, init=False
    )

    def add(self, group: SampleBatch) -> Iterator[MicroBatch]:
        """Take a group in; yields a micro-batch for each that is full now."""
        moved = [self.all_teach or a != 0 for a in group.scalars["advantage"].tolist()]
        for teaches, waiting in self._waiting.items():
            members = [i for i, does in enumerate(moved) if does == teaches]
            if members:
                waiting.append(group.select(members))
            if len(waiting) == self.size:
                yield self._full(teaches)

    def rest(self) -> Iterator[MicroBatch]:
        """What is left when no more groups come."""
        for teaches, waiting in self._waiting.items():
            if waiting:
                yield self._full(teaches)

    def _full(self, teaches: bool) -> MicroBatch:
        parts, self._waiting[teaches] = self._waiting[teaches], []
        return MicroBatch(samples=SampleBatch.join(parts), teaches=teaches)


def in_step(own: Iterable[MicroBatch], group: ProcessGroup | None) -> Iterator[MicroBatch]:
    """This rank's micro-batches, and one without samples for each that another rank has and this has not.

    own: at most one that teaches and one that does not. 16 bytes a rank; group None: own as they are.
    """
    if group is None:
        yield from own
        return
    by_kind = {micro_batch.teaches: micro_batch for micro_batch in own}
    kinds = (True, False)
    needed = torch.tensor([int(teaches in by_kind) for teaches in kinds])
    max_over_ranks(needed, group)
    for teaches, anybody in zip(kinds, needed.tolist(), strict=True):
        if anybody:
            yield by_kind.get(teaches, MicroBatch(samples=NO_SAMPLES, teaches=teaches))
