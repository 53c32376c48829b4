"""What workers ask a controller for, and what it answers. Pure."""

from dataclasses import dataclass

import numpy as np

from rljob_runtime.dock.controller.batch_ledger import BatchLedger, Chosen, uids_of
from rljob_runtime.dock.growing import Array
from rljob_runtime.dock.rows import Share
from rljob_runtime.dock.wire.messages import ClaimedRows, packed
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
        return self.rows.uids if self.rows else []


def claimed(batch: BatchLedger, chosen: Chosen) -> ClaimedRows:
    """What is told of rows that are given now."""
    number = len(chosen)
    sample, version, attempt, size, index, group = np.zeros((6, number), dtype=np.int64)
    lengths = {column: np.zeros(number, dtype=np.int64) for column in batch.needs}
    names: list[str] = []
    for warehouse, places, numbers in chosen.parts():
        part = batch.parts[warehouse]
        of_group, inverse = np.unique(part.group_of(numbers), return_inverse=True)
        group[places] = len(names) + inverse
        names += part.group_names.at(of_group.tolist())
        groups = of_group[inverse]
        sample[places] = numbers - part.groups["first"][groups]
        size[places] = part.groups["size"][groups]
        index[places] = part.groups["index"][groups]
        version[places] = part.rows["version"][numbers]
        attempt[places] = part.rows["attempt"][numbers]
        for column, own in lengths.items():
            own[places] = part.lengths(column)[numbers]
    return ClaimedRows(
        batch=batch.name,
        uids=uids_of(batch, chosen),
        groups=names,
        group=packed(group),
        group_index=packed(index),
        group_size=packed(size),
        sample=packed(sample),
        version=packed(version),
        warehouse=packed(chosen.warehouse_n),
        attempt=packed(attempt),
        lengths={column: packed(own) for column, own in lengths.items()},
    )


def check_age(batch: BatchLedger, chosen: Chosen, min_version: int) -> None:
    """Refuse to give any row where one is older than the claim accepts."""
    versions: list[Array] = [
        batch.parts[warehouse].rows["version"][numbers] for warehouse, _, numbers in chosen.parts()
    ]
    old = [own[own < min_version] for own in versions]
    if number := sum(map(len, old)):
        oldest = min(int(own.min()) for own in old if len(own))
        raise DockStale(
            f"{number} of {len(chosen)} rows of {batch.name} were made by weights version "
            f"{oldest}; the oldest that may be used is {min_version}"
        )
