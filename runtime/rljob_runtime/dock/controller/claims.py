"""What workers ask a controller for, and what it answers. Pure."""

from dataclasses import dataclass

import numpy as np

from rljob_runtime.dock.controller.batch_ledger import BatchLedger
from rljob_runtime.dock.controller.chosen import Chosen
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.names import PackedNames, names_of, pack_names
from rljob_runtime.dock.rows import Share
from rljob_runtime.dock.wire.messages import OF_ROWS, ClaimedRows, packed
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
    """The answer to a claim. rows: None for none. done: nothing of what was asked about is left for this
    state."""

    rows: ClaimedRows | None
    done: bool
    lease: str

    @property
    def uids(self) -> list[str]:
        """Names of the rows."""
        return names_of(self.rows.uids) if self.rows else []


def claimed(batch: BatchLedger, chosen: Chosen) -> ClaimedRows:
    """What is told of rows that are given now."""
    number = chosen.num_rows
    told = np.empty((len(OF_ROWS) + len(batch.needs), number), dtype=np.int64)
    uids, groups = list[str](), list[PackedNames]()
    num_groups, only = 0, PackedNames()
    for warehouse, places, numbers in chosen.pieces:
        part = batch.parts[warehouse]
        at = part.at(numbers)
        group = part.rows["group"][at].astype(np.int64)
        begins = np.ones(len(group), dtype=bool)
        np.not_equal(group[1:], group[:-1], out=begins[1:])
        of_part = part.groups
        told[0, places] = num_groups - 1 + begins.cumsum()
        groups.append(part.group_names.packed(group[begins]))
        num_groups += int(begins.sum())
        told[1, places] = of_part["index"][group]
        told[2, places] = of_part["size"][group]
        told[3, places] = numbers - of_part["first"][group]
        told[4, places] = part.rows["version"][at]
        told[5, places] = warehouse
        told[6, places] = part.rows["attempt"][at]
        for row, column in enumerate(batch.needs, len(OF_ROWS)):
            told[row, places] = part.lengths(column)[at]
        if isinstance(places, slice):
            only = part.names.packed(part.rows["place"][at].astype(np.int64))
            continue
        uids = uids or [""] * number
        for place, uid in zip(places.tolist(), part.uids(numbers), strict=True):
            uids[place] = uid
    return ClaimedRows(
        batch=batch.name,
        uids=pack_names(uids) if uids else only,
        groups=groups[0]
        if len(groups) == 1
        else pack_names([n for g in groups for n in names_of(g)]),
        columns=list(batch.needs),
        numbers=packed(told),
    )


def check_age(batch: BatchLedger, chosen: Chosen, min_version: int) -> None:
    """Refuse to give any row where one is older than the claim accepts."""
    versions: list[Array] = [
        batch.parts[warehouse].rows["version"][numbers] for warehouse, _, numbers in chosen.pieces
    ]
    old = [own[own < min_version] for own in versions]
    if number := sum(map(len, old)):
        oldest = min(int(own.min()) for own in old if len(own))
        raise DockStale(
            f"{number} of {chosen.num_rows} rows of {batch.name} were made by weights version "
            f"{oldest}; the oldest that may be used is {min_version}"
        )
