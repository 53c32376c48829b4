"""Samples cut into micro-batches as they come: those that can move the weights and the others apart.

Called by `training`. The cut depends on the samples and their order alone, not on when they came.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collectives import max_over_ranks
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.accumulation import NO_SAMPLES


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """teaches: False where the gradient is known to be zero."""

    samples: SampleBatch
    teaches: bool


@dataclass(slots=True, kw_only=True)
class MicroBatches:
    """Micro-batches of `size` groups or, with tokens, of as many samples as have no more tokens together.

    all_teach: the loss has a term beside the advantages.
    """

    size: int
    all_teach: bool
    tokens: int | None = None
    _waiting: dict[bool, list[SampleBatch]] = field(
        default_factory=lambda: {True: [], False: []}, init=False
    )

    def add(self, group: SampleBatch) -> Iterator[MicroBatch]:
        """Take a group in; yields each micro-batch that is full now."""
        moved = [True] * group.num_samples if self.all_teach else _moves(group)
        for teaches, waiting in self._waiting.items():
            members = [i for i, does in enumerate(moved) if does == teaches]
            if members and self.tokens is not None:
                yield from self._fill(teaches, group.select(members), self.tokens)
            elif members:
                waiting.append(group.select(members))
            if self.tokens is None and len(waiting) == self.size:
                yield self._full(teaches)

    def rest(self) -> Iterator[MicroBatch]:
        """What is left when no more groups come."""
        for teaches, waiting in self._waiting.items():
            if waiting:
                yield self._full(teaches)

    def _fill(self, teaches: bool, part: SampleBatch, tokens: int) -> Iterator[MicroBatch]:
        waiting = self._waiting[teaches]
        room = tokens - sum(map(count_tokens, waiting))
        for number, members in enumerate(_cut(part, tokens, room)):
            if number:
                yield self._full(teaches)
            if members:
                self._waiting[teaches].append(part.select(members))

    def _full(self, teaches: bool) -> MicroBatch:
        parts, self._waiting[teaches] = self._waiting[teaches], []
        return MicroBatch(samples=SampleBatch.join(parts), teaches=teaches)


def _moves(group: SampleBatch) -> list[bool]:
    """Whether each sample has an advantage other than 0."""
    if "advantages" in group.fields:
        return [bool(row_T.any()) for row_T in group.fields["advantages"]]
    return [advantage != 0 for advantage in group.scalars["advantage"].tolist()]


def count_tokens(samples: SampleBatch) -> int:
    """That a model reads: of responses with what tools put between, and of each prompt once."""
    return sum(map(len, samples.texts)) + sum(map(len, samples.prompts))


def score(
    samples: SampleBatch,
    logprobs: Callable[[SampleBatch], Tensor],
    *,
    tokens: int | None,
    group: ProcessGroup | None,
) -> Tensor:
    """Log-probs of all response tokens [T], in passes of at most so many tokens; None: in one.

    group: whose passes meet: who needs fewer computes its last one again meanwhile.
    """
    if tokens is None:
        return logprobs(samples)
    parts = [samples.select(members) for members in _cut(samples, tokens, tokens)]
    passes = torch.tensor([len(parts)])
    if group is not None:
        max_over_ranks(passes, group)
    found = [logprobs(parts[min(number, len(parts) - 1)]) for number in range(int(passes))]
    return torch.cat(found[: len(parts)])


def in_step(own: Iterable[MicroBatch], group: ProcessGroup | None) -> Iterator[MicroBatch]:
    """This rank's micro-batches, and one without samples for each that another rank has and this has not.

    16 bytes a rank; group None: own as they are.
    """
    if group is None:
        yield from own
        return
    kinds = (True, False)
    by_kind: dict[bool, list[MicroBatch]] = {teaches: [] for teaches in kinds}
    for micro_batch in own:
        by_kind[micro_batch.teaches].append(micro_batch)
    needed = torch.tensor([len(by_kind[teaches]) for teaches in kinds])
    max_over_ranks(needed, group)
    for teaches, number in zip(kinds, needed.tolist(), strict=True):
        yield from by_kind[teaches]
        for _ in range(number - len(by_kind[teaches])):
            yield MicroBatch(samples=NO_SAMPLES, teaches=teaches)


def _cut(samples: SampleBatch, tokens: int, room: int) -> list[list[int]]:
    """Samples in their order, cut where the next would make more than `tokens`; the first part has at most
    `room`, and may have none. A part counts each of its prompts once."""
    parts: list[list[int]] = [[]]
    prompts: set[int] = set()
    for sample, group in enumerate(samples.group_of_B.tolist()):
        response, prompt = len(samples.texts[sample]), len(samples.prompts[group])
        cost = response + (0 if group in prompts else prompt)
        if cost > room:
            parts.append([])
            prompts, room, cost = set(), tokens, response + prompt
        parts[-1].append(sample)
        prompts.add(group)
        room -= cost
    return parts
