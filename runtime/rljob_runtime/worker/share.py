"""A rank's share of a batch, read as its rows become ready, in an order that never depends on when.

Called by the reference and update states.
"""

from collections.abc import Iterator

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import RowMeta, Share
from rljob_runtime.errors import DockLost
from rljob_runtime.samples.batches import BatchName


def claim_in_order(
    dock: DockClient,
    batch: BatchName,
    share: tuple[int, int] | Share,
    *,
    min_version: int | None = None,
    num_groups: int,
    pass_groups: int,
    pass_rows: int,
    timeout_seconds: float,
) -> Iterator[list[RowMeta]]:
    """Rows of the share by (group, sample), `pass_groups` groups at a time; the last pass may have fewer.

    min_version: of the oldest weights whose rows are taken. num_groups: of the whole share.
    pass_rows: of so many groups. timeout_seconds: for each claim.
    Raises DockLost when rows that were given before come again, and what claims raise.
    """
    groups: dict[int, list[RowMeta]] = {}
    given, last = 0, -1
    while given < num_groups:
        claim = dock.claim(
            str(batch),
            share=share,
            limit=pass_rows,
            min_version=min_version,
            timeout_seconds=timeout_seconds,
        )
        if claim.done:
            raise DockLost(f"rows of {batch} were acknowledged before {dock.state} had read them")
        for row in claim.rows:
            if row.group_index < last:
                raise DockLost(f"row {row.uid} came back to {dock.state}: its lease had expired")
            given += row.group_index not in groups
            last = row.group_index
            groups.setdefault(last, []).append(row)
        while len(groups) >= pass_groups or (groups and given == num_groups):
            taken = [groups.pop(index) for index in list(groups)[:pass_groups]]
            yield [row for rows in taken for row in rows]
