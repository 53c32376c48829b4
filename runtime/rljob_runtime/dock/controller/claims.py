"""What workers ask a controller for, and what it answers. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from rljob_runtime.dock.controller.entries import Entry
from rljob_runtime.dock.rows import Share
from rljob_runtime.errors import DockStale


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """What a worker asks for. session: its process; request: repeated when it asks again.

    limit: rows at most (a whole group is given even when it alone is larger). share: of a rank; with
    a limit its next groups in order, without one all of it. min_version: of the oldest weights whose
    rows are accepted.
    """

    owner: str
    session: str
    request: str
    batch: str
    limit: int | None = None
    whole_groups: bool = False
    share: Share | None = None
    min_version: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The answer to a claim. done: nothing of what was asked about is left for this state."""

    entries: tuple[Entry, ...]
    done: bool
    lease: str


def check_age(batch: str, chosen: Sequence[Entry], min_version: int) -> None:
    """Refuse to give any row where one is older than the claim accepts."""
    old = [entry for entry in chosen if entry.version < min_version]
    if old:
        raise DockStale(
            f"{len(old)} of {len(chosen)} rows of {batch} were made by weights version "
            f"{min(entry.version for entry in old)}; the oldest that may be used is {min_version}"
        )
