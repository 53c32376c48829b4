"""Which tokens of packed samples each rank of a context group holds, by arithmetic.

Called by `ring` and whoever gives the ranks their tokens. Samples are cut where they are, into pieces that
differ by a token at most: nothing is padded. Without torch.
"""

from dataclasses import dataclass
from itertools import accumulate

from rljob_api.model.layout import share


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """A rank's two pieces of one sample, among the rank's tokens: low is [start, middle), high is
    [middle, end). Each may be empty."""

    start: int
    middle: int
    end: int

    @property
    def all(self) -> slice:
        """Both pieces."""
        return slice(self.start, self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZigZag:
    """Samples in 2·ranks pieces each, of which rank r holds the r-th and the r-th from the end.

    Causal attention costs a piece as much as what lies before it: such pairs cost all ranks the same.
    lengths: of the packed samples. prefixes: (sample, other) where the sample's tokens see all of another,
    which several may go on from.
    """

    lengths: tuple[int, ...]
    ranks: int
    prefixes: tuple[tuple[int, int], ...] = ()

    def halves(self, rank: int) -> list[Half]:
        """Both pieces of each sample where they lie among the rank's own tokens."""
        found: list[Half] = []
        end = 0
        for length in self.lengths:
            low, high = (len(piece) for piece in self._pieces(length, rank))
            found.append(Half(start=end, middle=end + low, end=end + low + high))
            end = found[-1].end
        return found

    def tokens(self, rank: int) -> list[int]:
        """Packed places of the rank's tokens, ascending."""
        starts = accumulate(self.lengths, initial=0)
        return [
            start + place
            for start, length in zip(starts, self.lengths, strict=False)
            for piece in self._pieces(length, rank)
            for place in piece
        ]

    def num_tokens(self, rank: int) -> int:
        """Tokens of the rank."""
        return sum(len(piece) for n in self.lengths for piece in self._pieces(n, rank))

    def _pieces(self, length: int, rank: int) -> tuple[range, range]:
        pieces = 2 * self.ranks
        return _piece(length, rank, pieces), _piece(length, pieces - 1 - rank, pieces)


def contiguous(tokens: int, ranks: int) -> list[range]:
    """All packed tokens in one piece a rank, without regard to samples; what Ulysses needs."""
    return [share(tokens, rank, ranks) for rank in range(ranks)]


def _piece(length: int, index: int, pieces: int) -> range:
    """Pieces r and r from the end together have the same length, or one more, on all ranks."""
    return range(length * index // pieces, length * (index + 1) // pieces)
