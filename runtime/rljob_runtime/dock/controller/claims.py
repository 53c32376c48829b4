"""Requests for rows that workers send to a controller, and the grants that answer them. Pure."""

from dataclasses import dataclass

import numpy as np

from rljob_runtime.dock.controller.batch_ledger import BatchLedger
from rljob_runtime.dock.controller.chosen import ChosenRows
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.names import PackedNames, pack_names, unpack_names
from rljob_runtime.dock.rows import Share
from rljob_runtime.dock.wire.messages import OF_ROWS, ClaimedRows, pack_numbers
from rljob_runtime.errors import DockStale


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRequest:
    """A worker's claim. session: its process; request: the request's number, the same when it is sent again.

    limit: maximum number of rows (a whole group is granted even where it alone is larger). share: of a rank;
    with a limit its next groups in order, without one all of it. min_version: the oldest weights version
    whose rows are accepted.
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
class ClaimGrant:
    """The answer to a claim. rows: None for no rows. done: the state has acknowledged all that was
    requested."""

    rows: ClaimedRows | None
    done: bool
    lease: str

    @property
    def uids(self) -> list[str]:
        """The uids of the rows."""
        return unpack_names(self.rows.uids) if self.rows else []


def claimed_rows(batch: BatchLedger, chosen: ChosenRows) -> ClaimedRows:
    """Return the metadata of the granted rows, as the answer carries it."""
    num_rows = chosen.num_rows
    table = np.empty((len(OF_ROWS) + len(batch.needs), num_rows), dtype=np.int64)
    uids, groups = list[str](), list[PackedNames]()
    num_groups, packed_uids = 0, PackedNames()
    for warehouse, positions, numbers in chosen.chunks:
        shard = batch.shards[warehouse]
        index = shard.index_of(numbers)
        group = shard.rows["group"][index].astype(np.int64)
        begins = np.ones(len(group), dtype=bool)
        np.not_equal(group[1:], group[:-1], out=begins[1:])
        shard_groups = shard.groups
        table[0, positions] = num_groups - 1 + begins.cumsum()
        groups.append(shard.group_names.packed(group[begins]))
        num_groups += int(begins.sum())
        table[1, positions] = shard_groups["index"][group]
        table[2, positions] = shard_groups["size"][group]
        table[3, positions] = numbers - shard_groups["first"][group]
        table[4, positions] = shard.rows["version"][index]
        table[5, positions] = warehouse
        table[6, positions] = shard.rows["attempt"][index]
        for row, column in enumerate(batch.needs, len(OF_ROWS)):
            table[row, positions] = shard.lengths(column)[index]
        if isinstance(positions, slice):
            packed_uids = shard.names.packed(shard.rows["place"][index].astype(np.int64))
            continue
        uids = uids or [""] * num_rows
        for position, uid in zip(positions.tolist(), shard.uids(numbers), strict=True):
            uids[position] = uid
    return ClaimedRows(
        batch=batch.name,
        uids=pack_names(uids) if uids else packed_uids,
        groups=groups[0]
        if len(groups) == 1
        else pack_names([n for g in groups for n in unpack_names(g)]),
        columns=list(batch.needs),
        numbers=pack_numbers(table),
    )


def check_age(batch: BatchLedger, chosen: ChosenRows, min_version: int) -> None:
    """Raise DockStale where one of the chosen rows is older than the claim accepts."""
    versions: list[Array] = [
        batch.shards[warehouse].rows["version"][numbers] for warehouse, _, numbers in chosen.chunks
    ]
    stale = [row_versions[row_versions < min_version] for row_versions in versions]
    if num_stale := sum(map(len, stale)):
        oldest = min(int(row_versions.min()) for row_versions in stale if len(row_versions))
        raise DockStale(
            f"{num_stale} of {chosen.num_rows} rows of {batch.name} were made by weights version "
            f"{oldest}; the oldest that may be used is {min_version}"
        )
