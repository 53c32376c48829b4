"""What a step was made of and what it made, as digests that follow each other in a chain. Pure functions.

Ranks report sums that do not depend on how rows and weights were shared out; the driver makes a step's digest
of them. `rljob replay` computes a step again and compares. Against errors and changed files, not against who
writes a whole chain anew.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rljob_runtime.record.event_types import Digest

LINKS = ("prompts", "batch", "rewards", "weights")
"""In the order in which a step makes them, which is that of a replay's verdict."""
ROWS_MODULUS, WEIGHTS_MODULUS = 2**128, 2**64


@dataclass(slots=True, kw_only=True)
class RowSums:
    """Sums of the rows' digests, modulo 2^128: neither their order nor who has them matters."""

    prompts: int = 0
    batch: int = 0
    rewards: int = 0

    def add(self, link: str, key: tuple[int, ...], parts: Iterable[bytes | memoryview]) -> None:
        """Count something in. key: which prompt, and which sample of it."""
        digest = hashlib.blake2b(repr(key).encode(), digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        value = getattr(self, link) + int.from_bytes(digest.digest(), "little")
        setattr(self, link, value % ROWS_MODULUS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDigest:
    """What one rank trained on and holds afterwards. weights: sum by a digest of what was summed up, which is
    the same on ranks that hold the same slices."""

    rows: RowSums = field(default_factory=RowSums)
    weights: Mapping[str, int] = field(default_factory=dict)


def digest_of(ranks: Sequence[RankDigest], *, previous: str) -> Digest:
    """Of a step, from all ranks that trained. previous: chain of the step before, empty where none is
    known."""
    rows = {
        link: f"{sum(getattr(rank.rows, link) for rank in ranks) % ROWS_MODULUS:032x}"
        for link in LINKS[:-1]
    }
    held = {pair for rank in ranks for pair in rank.weights.items()}  # replicas have equal pairs
    weights = f"{sum(value for _, value in held) % WEIGHTS_MODULUS:016x}"
    found = Digest(**rows, weights=weights, chain="")
    return Digest(**rows, weights=weights, chain=chained(found, previous=previous))


def chained(digest: Digest, *, previous: str) -> str:
    """The chain's value after a step: SHA-256, 64 hex digits."""
    links = (getattr(digest, link) for link in LINKS)
    return hashlib.sha256(" ".join((previous, *links)).encode()).hexdigest()


def first_difference(told: Digest, found: Digest) -> str | None:
    """The first of the links that is another one; None where all are the same."""
    return next((link for link in LINKS if getattr(told, link) != getattr(found, link)), None)


def broken_links(steps: Mapping[int, Digest]) -> Iterator[int]:
    """Steps whose chain does not follow from that of the step before and their own links. Of a step after one
    without a digest, whose chain began there or is unknown, nothing is said."""
    for step, digest in sorted(steps.items()):
        before = steps.get(step - 1)
        previous = "" if step == 1 else before.chain if before else None
        if previous is not None and chained(digest, previous=previous) != digest.chain:
            yield step
