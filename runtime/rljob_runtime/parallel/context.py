"""Compute which tokens of packed samples each rank of a context parallel group holds.

Called by `ring` and by the code that distributes tokens over ranks. Samples are cut where they are, into
chunks whose lengths differ by one token at most; nothing is padded. Without torch.
"""

from dataclasses import dataclass
from itertools import accumulate

from rljob_api.model.layout import share


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkPair:
    """A rank's two chunks of one sample, among the rank's tokens: low is [start, middle), high is [middle,
    end). Each may be empty."""

    start: int
    middle: int
    end: int

    @property
    def all(self) -> slice:
        """The slice of both chunks."""
        return slice(self.start, self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZigZag:
    """Samples in 2·ranks chunks each, of which rank r holds the r-th and the r-th from the end.

    Causal attention costs a chunk as much as the tokens before it, so such pairs cost all ranks the same.
    lengths: of the packed samples. prefixes: (sample, other) where the sample's tokens attend to all of
    another, which several samples may continue.
    """

    lengths: tuple[int, ...]
    ranks: int
    prefixes: tuple[tuple[int, int], ...] = ()

    def chunk_pairs(self, rank: int) -> list[ChunkPair]:
        """Return both chunks of each sample, as offsets among the rank's local tokens."""
        pairs: list[ChunkPair] = []
        end = 0
        for length in self.lengths:
            low, high = (len(chunk) for chunk in self._chunks(length, rank))
            pairs.append(ChunkPair(start=end, middle=end + low, end=end + low + high))
            end = pairs[-1].end
        return pairs

    def tokens(self, rank: int) -> list[int]:
        """Return the packed offsets of the rank's tokens, ascending."""
        starts = accumulate(self.lengths, initial=0)
        return [
            start + offset
            for start, length in zip(starts, self.lengths, strict=False)
            for chunk in self._chunks(length, rank)
            for offset in chunk
        ]

    def num_tokens(self, rank: int) -> int:
        """Return the number of the rank's tokens."""
        return sum(len(chunk) for n in self.lengths for chunk in self._chunks(n, rank))

    def _chunks(self, length: int, rank: int) -> tuple[range, range]:
        num_chunks = 2 * self.ranks
        return _chunk(length, rank, num_chunks), _chunk(length, num_chunks - 1 - rank, num_chunks)


def contiguous(tokens: int, ranks: int) -> list[range]:
    """Return all packed tokens as one range a rank, without regard to samples; Ulysses needs this."""
    return [share(tokens, rank, ranks) for rank in range(ranks)]


def _chunk(length: int, index: int, num_chunks: int) -> range:
    """Return a chunk's range. Chunks r and r from the end have together the same length, or one more, on all
    ranks."""
    return range(length * index // num_chunks, length * (index + 1) // num_chunks)
