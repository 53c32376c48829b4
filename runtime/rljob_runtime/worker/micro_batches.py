"""Split samples into micro-batches as they arrive, separating those with a gradient from the others.

`training` calls this. The split depends on the samples and their order alone, not on when they arrived.
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
    """Samples of one pass. teaches: False if the gradient is known to be zero."""

    samples: SampleBatch
    teaches: bool


@dataclass(slots=True, kw_only=True)
class MicroBatches:
    """Micro-batches of `size` groups or, with tokens, of as many samples as fit into that many tokens.

    all_teach: the loss has a term that does not depend on the advantages.
    """

    size: int
    all_teach: bool
    tokens: int | None = None
    _waiting: dict[bool, list[SampleBatch]] = field(
        default_factory=lambda: {True: [], False: []}, init=False
    )

    def add(self, group: SampleBatch) -> Iterator[MicroBatch]:
        """Add a group; yields each micro-batch that is now full."""
        moved = [True] * group.num_samples if self.all_teach else _moves(group)
        for teaches, waiting in self._waiting.items():
            members = [i for i, does in enumerate(moved) if does == teaches]
            if members and self.tokens is not None:
                yield from self._fill(teaches, group.select(members), self.tokens)
            elif members:
                waiting.append(group.select(members))
            if self.tokens is None and len(waiting) == self.size:
                yield self._full(teaches)

    def remaining(self) -> Iterator[MicroBatch]:
        """Yield incomplete micro-batches after the last group."""
        for teaches, waiting in self._waiting.items():
            if waiting:
                yield self._full(teaches)

    def _fill(self, teaches: bool, samples: SampleBatch, tokens: int) -> Iterator[MicroBatch]:
        waiting = self._waiting[teaches]
        room = tokens - sum(map(count_tokens, waiting))
        for number, members in enumerate(_cut(samples, tokens, room)):
            if number:
                yield self._full(teaches)
            if members:
                self._waiting[teaches].append(samples.select(members))

    def _full(self, teaches: bool) -> MicroBatch:
        waiting, self._waiting[teaches] = self._waiting[teaches], []
        return MicroBatch(samples=SampleBatch.join(waiting), teaches=teaches)


def _moves(group: SampleBatch) -> list[bool]:
    """Return whether each sample has an advantage other than 0."""
    if "advantages" in group.fields:
        return [bool(row_T.any()) for row_T in group.fields["advantages"]]
    return [advantage != 0 for advantage in group.scalars["advantage"].tolist()]


def count_tokens(samples: SampleBatch) -> int:
    """Return the tokens that a model reads: responses, including tools' tokens, and each prompt once."""
    return sum(map(len, samples.texts)) + sum(map(len, samples.prompts))


def score(
    samples: SampleBatch,
    logprobs: Callable[[SampleBatch], Tensor],
    *,
    tokens: int | None,
    group: ProcessGroup | None,
) -> Tensor:
    """Return log-probs of all response tokens [T], in passes of at most so many tokens; None: in one pass.

    group: ranks whose passes meet: a rank that needs fewer repeats its last one.
    """
    if tokens is None:
        return logprobs(samples)
    chunks = [samples.select(members) for members in _cut(samples, tokens, tokens)]
    passes = torch.tensor([len(chunks)])
    if group is not None:
        max_over_ranks(passes, group)
    logprobs_of_passes = [
        logprobs(chunks[min(number, len(chunks) - 1)]) for number in range(int(passes))
    ]
    return torch.cat(logprobs_of_passes[: len(chunks)])


def pad_to_same_count(
    local: Iterable[MicroBatch], group: ProcessGroup | None
) -> Iterator[MicroBatch]:
    """Yield this rank's micro-batches, and empty ones until it has as many as any other rank.

    Sends 16 bytes per rank; group None: yields the local ones unchanged.
    """
    if group is None:
        yield from local
        return
    kinds = (True, False)
    by_kind: dict[bool, list[MicroBatch]] = {teaches: [] for teaches in kinds}
    for micro_batch in local:
        by_kind[micro_batch.teaches].append(micro_batch)
    needed = torch.tensor([len(by_kind[teaches]) for teaches in kinds])
    max_over_ranks(needed, group)
    for teaches, number in zip(kinds, needed.tolist(), strict=True):
        yield from by_kind[teaches]
        for _ in range(number - len(by_kind[teaches])):
            yield MicroBatch(samples=NO_SAMPLES, teaches=teaches)


def _cut(samples: SampleBatch, tokens: int, room: int) -> list[list[int]]:
    """Split samples in order, where the next one would exceed `tokens`; returns indices of each chunk.

    The first chunk has at most `room` tokens, and may be empty. A chunk counts each of its prompts once.
    """
    chunks: list[list[int]] = [[]]
    prompts: set[int] = set()
    for sample, group in enumerate(samples.group_of_B.tolist()):
        response, prompt = len(samples.texts[sample]), len(samples.prompts[group])
        cost = response + (0 if group in prompts else prompt)
        if cost > room:
            chunks.append([])
            prompts, room, cost = set(), tokens, response + prompt
        chunks[-1].append(sample)
        prompts.add(group)
        room -= cost
    return chunks
