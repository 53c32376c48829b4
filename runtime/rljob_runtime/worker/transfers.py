"""Transfers between update ranks when some of them continue in new processes.

`shard_holders` plans them, and the device worker carries them out.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One part of a `KeptState`, sent from rank to rank.

    copied: sent from the giver's second copy of the taker, not from the giver's own state.
    """

    part: str
    giver: int
    taker: int
    copied: bool
