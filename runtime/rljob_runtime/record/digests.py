"""Digests of the inputs and the result of a step, linked in a chain. Pure functions.

Ranks report sums that do not depend on how rows and weights are distributed; the driver combines them into
the digest of a step. `rljob replay` computes a step again and compares. This detects errors and changed
files, not an author who rewrites a whole chain.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rljob_runtime.record.event_types import Digest

LINKS = ("prompts", "batch", "rewards", "weights")
"""In the order in which a step computes them, which is the order of a replay's comparison."""
ROWS_MODULUS, WEIGHTS_MODULUS = 2**128, 2**64


@dataclass(slots=True, kw_only=True)
class RowSums:
    """Sums of the rows' digests modulo 2^128, independent of the order and the owner of the rows."""

    prompts: int = 0
    batch: int = 0
    rewards: int = 0

    def add(self, link: str, key: tuple[int, ...], chunks: Iterable[bytes | memoryview]) -> None:
        """Add the digest of one row. key: number of the prompt, and of the sample within it."""
        digest = hashlib.blake2b(repr(key).encode(), digest_size=16)
        for chunk in chunks:
            digest.update(len(chunk).to_bytes(8, "little"))
            digest.update(chunk)
        value = getattr(self, link) + int.from_bytes(digest.digest(), "little")
        setattr(self, link, value % ROWS_MODULUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDigest:
    """The rows that one rank trained on, and its weights afterwards.

    weights: sum by the digest of the summed slice, which is equal on ranks that hold the same slices.
    """

    rows: RowSums = field(default_factory=RowSums)
    weights: Mapping[str, int] = field(default_factory=dict)


def digest_of(ranks: Sequence[RankDigest], *, previous: str) -> Digest:
    """Combine the digests of all ranks that trained into the digest of the step.

    previous: chain value of the step before, empty if it is unknown.
    """
    rows = {
        link: f"{sum(getattr(rank.rows, link) for rank in ranks) % ROWS_MODULUS:032x}"
        for link in LINKS[:-1]
    }
    # Replicas have equal pairs, of which the set keeps one.
    slice_sums = {pair for rank in ranks for pair in rank.weights.items()}
    weights = f"{sum(value for _, value in slice_sums) % WEIGHTS_MODULUS:016x}"
    unchained = Digest(**rows, weights=weights, chain="")
    return Digest(**rows, weights=weights, chain=chain_value(unchained, previous=previous))


def chain_value(digest: Digest, *, previous: str) -> str:
    """Chain value after a step: SHA-256 as 64 hex digits."""
    links = (getattr(digest, link) for link in LINKS)
    return hashlib.sha256(" ".join((previous, *links)).encode()).hexdigest()


def first_difference(recorded: Digest, computed: Digest) -> str | None:
    """Name of the first link that differs, or None if all are equal."""
    return next(
        (link for link in LINKS if getattr(recorded, link) != getattr(computed, link)), None
    )


def broken_links(steps: Mapping[int, Digest]) -> Iterator[int]:
    """Yield the steps whose chain value does not follow from the step before and their own links.

    A step after one without a digest is skipped, because its previous chain value is unknown.
    """
    for step, digest in sorted(steps.items()):
        previous_digest = steps.get(step - 1)
        previous = "" if step == 1 else previous_digest.chain if previous_digest else None
        if previous is not None and chain_value(digest, previous=previous) != digest.chain:
            yield step
