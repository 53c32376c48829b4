"""Rows as the dock's callers see them: new ones, their metadata, a share, a claim."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRow:
    """A row to put, with its first columns.

    uid: globally unique. group: rows with one prompt; all of them go into one `put_rows`. group_index: the
    group's index in its batch; decides warehouse and share. columns: this row's columns. group_columns:
    stored once a group (the first row's are used), each [V, ...]. reserve_bytes: upper bound of what the
    states will write to the row. The warehouse reserves that memory; with an honest bound consumers never
    wait for room.
    """

    uid: str
    group: str
    group_index: int
    version: int = 0
    columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    group_columns: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    reserve_bytes: int = 0


class Share(NamedTuple):
    """The groups of one rank.

    window 0: those whose index modulo `of` is `rank`. Otherwise each rank gets as many groups as any other
    out of each `window` consecutive groups, with nearly equal total lengths.
    """

    rank: int
    of: int
    window: int = 0


class RowMeta(NamedTuple):
    """Metadata of a claimed row, as its controller stores it.

    sample: index in its group. warehouse: index of the one that stores it. lengths: number of values of each
    column that the state needs. attempt: 1 for the first claim. lease: the claim that holds it. It is a named
    tuple, which is constructed in a tenth of a dataclass's time.
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
    attempt: int
    lease: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RowClaim:
    """Rows leased to one owner. done: the state has acknowledged all that the claim covers."""

    rows: tuple[RowMeta, ...]
    done: bool
    lease: str = ""

    def __bool__(self) -> bool:
        return bool(self.rows)
