"""A warehouse's epoch: which rows it has, and how often they continued without their standby. Pure.

`NAME.TERM`: the name is new for each empty start; the term increases when the warehouse continues without its
standby. Rows that are taken over from a standby keep its epoch. A controller that received a later epoch
thereby detects that the standby was outdated.
"""

import secrets
from collections.abc import Sequence

from rljob_runtime.dock.wire.frames import MalformedFrame


def new_epoch() -> str:
    """Return the epoch of a warehouse that starts empty."""
    return f"{secrets.token_hex(8)}.0"


def next_term(epoch: str) -> str:
    """Return the epoch of the same rows from now on without their standby."""
    name, term = _parts(epoch)
    return f"{name}.{term + 1}"


def start_of(epoch: str) -> str:
    """Return the name: two epochs with one name have the rows since that start, or those taken over from
    it."""
    return epoch.split(".")[0]


def is_behind(epoch: str, received: Sequence[str]) -> bool:
    """Return True when a peer that received these epochs of the warehouse, in order, has received a later
    one."""
    name, term = _parts(epoch)
    parsed = [_parts(other) for other in received]
    if not parsed or all(other != name for other, _ in parsed):
        return False
    last_name, last_term = parsed[-1]
    return last_name != name or last_term > term


def _parts(epoch: str) -> tuple[str, int]:
    name, _, term = epoch.rpartition(".")
    if not term.isdecimal():
        raise MalformedFrame(f"{epoch!r} is no epoch")
    return name, int(term)
