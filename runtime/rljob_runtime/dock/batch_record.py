"""Records of a warehouse: rows, their groups' shared cells, and what is known of each batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rljob_runtime.dock.columns import Format, Ragged, as_bytes, format_of
from rljob_runtime.errors import DockRefused

if TYPE_CHECKING:
    from rljob_runtime.dock.store import RowHead


class Cell(NamedTuple):
    """One row's values of one column. length: along the first axis."""

    length: int
    data: bytes


Cells = dict[str, Cell]
"""One row's (or group's) cells by column, each in bytes of its own, so that freeing frees."""


@dataclass(slots=True, kw_only=True)
class StoredRow:
    """A live row. acks: state -> lease that acknowledged. charge: bytes counted for it."""

    head: "RowHead"
    batch: str
    cells: Cells
    charge: int
    num_bytes: int = 0
    version: int = field(init=False)
    acks: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.version = self.head.version


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

    def check_formats(self, columns: Mapping[str, Ragged]) -> None:
        """Refuse a column whose type differs from that of the batch's other rows."""
        for name, column in columns.items():
            known, given = self.formats.get(name), format_of(column)
            if known is not None and known != given:
                raise DockRefused(
                    f"column {name} of {self.name} is {known}; this write has {given}"
                )

    def learn_formats(
        self, columns: Mapping[str, Ragged], group_columns: Mapping[str, Ragged]
    ) -> None:
        """Remember the columns' types and which of them are the groups'."""
        for name, column in [*columns.items(), *group_columns.items()]:
            self.formats.setdefault(name, format_of(column))
        self.group_names |= set(group_columns)


def cells_of(columns: Mapping[str, Ragged], num_rows: int) -> list[Cells]:
    """Each row's cells, copied out of the columns."""
    cells: list[Cells] = [{} for _ in range(num_rows)]
    for name, column in columns.items():
        data, place = as_bytes(column.values), 0
        sizes = zip(column.lengths.tolist(), column.row_bytes(), strict=True)
        for row, (length, size) in zip(cells, sizes, strict=True):
            row[name] = Cell(length, bytes(data[place : place + size]))
            place += size
    return cells
