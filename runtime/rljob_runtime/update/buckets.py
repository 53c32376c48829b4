"""Group parameters into buckets, so that a collective moves many in one call, and compute a rank's share.

`gradients` and `zero` call this; it imports no torch. Buckets go from the last parameter to the first, in the
order in which gradients arrive.
"""

from collections.abc import Mapping
from dataclasses import dataclass

BUCKET_ITEMS = 8 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSlice:
    """Items [start, stop) of a parameter, stored from `offset` on in a bucket."""

    name: str
    start: int
    stop: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Full parameters laid end to end. items: including padding that splits the bucket evenly over
    `ranks`."""

    slices: tuple[BucketSlice, ...]
    items: int
    ranks: int

    def slice_of(self, rank: int) -> slice:
        """Return the rank's slice of the bucket."""
        size = self.items // self.ranks
        return slice(rank * size, (rank + 1) * size)

    def owned_slices(self, rank: int) -> list[BucketSlice]:
        """Return the rank's slice of each parameter that it owns part of; offsets are within the rank's
        slice."""
        rank_slice = self.slice_of(rank)
        owned: list[BucketSlice] = []
        for full in self.slices:
            first = max(full.offset, rank_slice.start)
            last = min(full.offset + full.stop, rank_slice.stop)
            if first < last:
                owned.append(
                    BucketSlice(
                        name=full.name,
                        start=first - full.offset,
                        stop=last - full.offset,
                        offset=first - rank_slice.start,
                    )
                )
        return owned


def plan_buckets(
    sizes: Mapping[str, int], ranks: int, *, bucket_items: int = BUCKET_ITEMS
) -> list[Bucket]:
    """Create buckets of at most `bucket_items`, or of one larger parameter, from the last parameter to the
    first.

    sizes: items of each parameter, in the order of the forward pass.
    """
    buckets: list[Bucket] = []
    slices: list[BucketSlice] = []
    filled = 0
    for name, size in reversed(list(sizes.items())):
        if slices and filled + size > bucket_items:
            buckets.append(_bucket(slices, filled, ranks))
            slices, filled = [], 0
        slices.append(BucketSlice(name=name, start=0, stop=size, offset=filled))
        filled += size
    return [*buckets, _bucket(slices, filled, ranks)] if slices else buckets


def _bucket(slices: list[BucketSlice], filled: int, ranks: int) -> Bucket:
    return Bucket(slices=tuple(slices), items=-(-filled // ranks) * ranks, ranks=ranks)
