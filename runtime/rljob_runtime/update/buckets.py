"""Parameters end to end in buckets, so that a collective moves many at once, and what a rank owns of them.

Called by `gradients` and `zero`. Without torch. Buckets go from the last parameter to the first, as their
gradients come.
"""

from collections.abc import Mapping
from dataclasses import dataclass

BUCKET_ITEMS = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Items [start, stop) of a parameter, from `place` on in a bucket."""

    name: str
    start: int
    stop: int
    place: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Whole parameters. items: with what is added to split it evenly over `ranks`."""

    pieces: tuple[Piece, ...]
    items: int
    ranks: int

    def slice_of(self, rank: int) -> slice:
        """The rank's part of the bucket."""
        part = self.items // self.ranks
        return slice(rank * part, (rank + 1) * part)

    def owned(self, rank: int) -> list[Piece]:
        """The rank's part of each parameter of which it has one; places count from the part's begin."""
        own = self.slice_of(rank)
        found: list[Piece] = []
        for whole in self.pieces:
            first = max(whole.place, own.start)
            last = min(whole.place + whole.stop, own.stop)
            if first < last:
                found.append(
                    Piece(
                        name=whole.name,
                        start=first - whole.place,
                        stop=last - whole.place,
                        place=first - own.start,
                    )
                )
        return found


def plan_buckets(
    sizes: Mapping[str, int], ranks: int, *, bucket_items: int = BUCKET_ITEMS
) -> list[Bucket]:
    """Buckets of at most `bucket_items`, or of one larger parameter, from the last parameter to the first.

    sizes: items of each parameter, in the order of the forward pass.
    """
    buckets: list[Bucket] = []
    pieces: list[Piece] = []
    filled = 0
    for name, size in reversed(list(sizes.items())):
        if pieces and filled + size > bucket_items:
            buckets.append(_bucket(pieces, filled, ranks))
            pieces, filled = [], 0
        pieces.append(Piece(name=name, start=0, stop=size, place=filled))
        filled += size
    return [*buckets, _bucket(pieces, filled, ranks)] if pieces else buckets


def _bucket(pieces: list[Piece], filled: int, ranks: int) -> Bucket:
    return Bucket(pieces=tuple(pieces), items=-(-filled // ranks) * ranks, ranks=ranks)
