"""What update ranks give each other when some of them go on in new processes.

Decided by `shard_holders`, made by the device worker.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A part of a `KeptState`, from rank to rank. copied: out of the giver's second copy of the taker, not of
    what is the giver's own."""

    part: str
    giver: int
    taker: int
    copied: bool
