"""Records of a warehouse: rows, their groups' shared cells, and what is known of each batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rljob_runtime.dock.columns import Format, Packed
from rljob_runtime.dock.warehouse.cells import Cells
from rljob_runtime.dock.wire.messages import RowHead
from rljob_runtime.errors import DockRefused

ROW_BYTES = 256
"""Charged for each row beside its columns, so that rows without bytes are bounded too."""


@dataclass(slots=True, kw_only=True)
class StoredRow:
    """A live row. number: of the batch's in this warehouse, as they came. acks: state -> lease that
    acknowledged. charge: bytes counted for it."""

    head: RowHead
    batch: str
    number: int
    cells: Cells
    charge: int
    num_bytes: int = 0
    version: int = field(init=False)
    acks: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.version = self.head.version

    def growth(self, added: int) -> int:
        """Bytes to charge beyond its reserve for so many more."""
        return max(0, ROW_BYTES + self.num_bytes + added - self.charge)


@dataclass(slots=True)
class GroupCells:
    """Columns that a group's rows share; freed with the last of them."""

    cells: Cells
    charge: int
    live: int = 0


@dataclass(slots=True, kw_only=True)
class BatchRecord:
    """A batch's part in one warehouse.

    known: rows ever put here. acked: rows acknowledged by each state, freed ones included.
    freed: acknowledgements of rows that are gone, kept to answer repeated messages.
    """

    name: str
    total: int
    states: tuple[str, ...]
    known: int = 0
    dropped: bool = False
    acked: dict[str, int] = field(default_factory=dict)
    live: dict[str, None] = field(default_factory=dict)
    freed: dict[str, dict[str, str]] = field(default_factory=dict)
    groups: dict[str, GroupCells] = field(default_factory=dict)
    formats: dict[str, Format] = field(default_factory=dict)
    group_names: frozenset[str] = frozenset()
    _alike: dict[tuple[tuple[str, str], ...], dict[str, str]] = field(default_factory=dict)

    def remember(self, uid: str, acks: dict[str, str]) -> None:
        """This row is gone. Rows of the same leases, most of a group, share what is kept."""
        self.freed[uid] = self._alike.setdefault(tuple(acks.items()), acks)

    def settle(self) -> None:
        """No row is live: give back what their tables took, which emptied ones keep."""
        self.live, self.groups, self._alike = {}, {}, {}

    def knows(self, uid: str) -> bool:
        """True for a row that is or was here."""
        return uid in self.live or uid in self.freed

    def check_formats(self, columns: Mapping[str, Packed]) -> None:
        """Refuse a column whose type differs from that of the batch's other rows."""
        for name, column in columns.items():
            known, given = self.formats.get(name), column.form
            if known is not None and known is not given and known != given:
                raise DockRefused(
                    f"column {name} of {self.name} is {known}; this write has {given}"
                )

    def learn_formats(
        self, columns: Mapping[str, Packed], group_columns: Mapping[str, Packed]
    ) -> None:
        """Remember the columns' types and which of them are the groups'."""
        for name, column in [*columns.items(), *group_columns.items()]:
            self.formats.setdefault(name, column.form)
        if not self.group_names.issuperset(group_columns):
            self.group_names |= set(group_columns)
