"""A warehouse's epoch: which rows it has, and how often they went on without their standby. Pure.

`NAME.TERM`: the name is new for each start from nothing; the term grows when the warehouse goes on
alone. What is taken over from a standby keeps its epoch, so who has seen a later one knows that the
standby had been left behind.
"""

import secrets
from collections.abc import Sequence

from rljob_runtime.dock.wire.frames import MalformedFrame


def new_epoch() -> str:
    """Of a warehouse that starts from nothing."""
    return f"{secrets.token_hex(8)}.0"


def next_term(epoch: str) -> str:
    """The same rows, from now on without their standby."""
    name, term = _parts(epoch)
    return f"{name}.{term + 1}"


def start_of(epoch: str) -> str:
    """The name alone: whoever has the same one has the rows since that start, or those that it took over."""
    return epoch.split(".")[0]


def is_behind(epoch: str, seen: Sequence[str]) -> bool:
    """True when a peer that saw these epochs of the warehouse, in order, has seen a later one."""
    name, term = _parts(epoch)
    known = [_parts(other) for other in seen]
    if not known or all(other != name for other, _ in known):
        return False
    last_name, last_term = known[-1]
    return last_name != name or last_term > term


def _parts(epoch: str) -> tuple[str, int]:
    name, _, term = epoch.rpartition(".")
    if not term.isdecimal():
        raise MalformedFrame(f"{epoch!r} is no epoch")
    return name, int(term)
