"""Read a rank's share of a batch as its rows become ready, in an order that does not depend on timing.

The reference and update states call this.
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
    """Yield rows of the share by (group, sample), `pass_groups` groups at a time; the last pass may have
    fewer.

    min_version: oldest weights whose rows are accepted. num_groups: of the full share.
    pass_rows: rows of pass_groups groups. timeout_seconds: of each claim.
    Raises DockLost if rows that were claimed before are returned again, and the errors of claims.
    """
    groups: dict[int, list[RowMeta]] = {}
    num_claimed, last_index = 0, -1
    while num_claimed < num_groups:
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
            if row.group_index < last_index:
                raise DockLost(f"row {row.uid} came back to {dock.state}: its lease had expired")
            num_claimed += row.group_index not in groups
            last_index = row.group_index
            groups.setdefault(last_index, []).append(row)
        while len(groups) >= pass_groups or (groups and num_claimed == num_groups):
            pass_groups_rows = [groups.pop(index) for index in list(groups)[:pass_groups]]
            yield [row for rows in pass_groups_rows for row in rows]
