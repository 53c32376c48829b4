"""Rows and groups as a controller knows them, until their state has acknowledged them. Read by
`batch_ledger`."""

from dataclasses import dataclass, field

from rljob_runtime.dock.wire.frames import pack_value
from rljob_runtime.dock.wire.messages import ClaimedRow


@dataclass(slots=True, kw_only=True)
class Entry:
    """A row that the state has not acknowledged. missing: needed columns that it lacks.

    packed: what a claim's answer says of it beside its attempt; empty until it is ready.
    """

    uid: str
    batch: str
    group: str
    group_index: int
    group_size: int
    sample: int
    version: int
    warehouse: int
    lengths: dict[str, int]
    missing: set[str]
    lease: str | None = None
    attempt: int = 0
    packed: bytes = b""

    @property
    def ready(self) -> bool:
        """True when it may be claimed."""
        return not self.missing and self.lease is None

    def pack(self) -> None:
        """Make what a claim's answer says of the row, before somebody waits for it."""
        place = (self.uid, self.batch, self.group, self.group_index, self.group_size)
        row = ClaimedRow(*place, self.sample, self.version, self.warehouse, self.lengths)
        self.packed = pack_value(row)


@dataclass(slots=True, kw_only=True)
class GroupLedger:
    """A group's rows that are left; all of them came with one broadcast."""

    index: int
    rows: dict[str, Entry] = field(default_factory=dict)
    num_ready: int = 0

    @property
    def ready(self) -> bool:
        """True when every row that is left may be claimed."""
        return self.num_ready == len(self.rows) > 0

    @property
    def given(self) -> bool:
        """True when every row that is left is leased."""
        return all(entry.lease is not None for entry in self.rows.values())

    @property
    def num_values(self) -> int:
        """Values of the needed columns of all rows that are left."""
        return sum(sum(entry.lengths.values()) for entry in self.rows.values())

    def in_order(self) -> list[Entry]:
        """The rows that are left, by their place in the group."""
        return sorted(self.rows.values(), key=lambda entry: entry.sample)
