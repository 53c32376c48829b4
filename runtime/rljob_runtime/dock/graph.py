"""The dataflow graph of a job: which state needs and writes which columns.

Every server gets it at its start. Pure; the warehouse checks messages against it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_runtime.errors import DockRefused

NEW_ROWS = "feed"
"""Placeholder for the state that writes columns that are put with the new rows."""
OTHER_COLUMNS = "other"
"""Placeholder for the state that writes columns that the graph does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A consumer of rows, e.g. reward: needs (prompt, response), writes (reward,).

    A row is ready for the state once it has all columns of `needs`. Writing all columns of `writes`
    acknowledges it. A state that writes nothing, or is the only one that the row passes, may acknowledge
    without columns.
    """

    name: str
    needs: tuple[str, ...]
    writes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON for configuration files and messages."""
        return {"name": self.name, "needs": list(self.needs), "writes": list(self.writes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGraph:
    """The states of a job. Columns that no state writes are put with the new rows.

    Raises ValueError when a name is declared twice or two states write one column.
    """

    states: tuple[State, ...]

    def __post_init__(self) -> None:
        names = [state.name for state in self.states]
        written = [column for state in self.states for column in state.writes]
        for description, items in (("state", names), ("written column", written)):
            duplicates = sorted({item for item in items if items.count(item) > 1})
            if duplicates:
                raise ValueError(
                    f"{description} {duplicates[0]!r} is declared twice; it may be once"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the states, in order."""
        return tuple(state.name for state in self.states)

    def state(self, name: str) -> State:
        """Return the state of that name. Raises DockRefused."""
        for state in self.states:
            if state.name == name:
                return state
        raise DockRefused(f"state {name!r} is not in the graph; its states are {list(self.names)}")

    def writer(self, column: str) -> str:
        """Return the state that writes a column, NEW_ROWS, or OTHER_COLUMNS."""
        for state in self.states:
            if column in state.writes:
                return state.name
        needed = any(column in state.needs for state in self.states)
        return NEW_ROWS if needed else OTHER_COLUMNS

    def first_writer(self, columns: Collection[str]) -> str:
        """Return the first of the states that write these columns: the others may be waiting for it."""
        writers = {self.writer(column) for column in columns}
        return next((name for name in self.names if name in writers), NEW_ROWS)

    def check_new_rows(self, batch: str, states: Sequence[str], columns: Sequence[str]) -> None:
        """Raise DockRefused for rows on which one of their states would wait forever."""
        row_states = [self.state(name) for name in states]
        if not row_states:
            raise DockRefused(f"rows of {batch} pass no state; name at least one")
        written = {column: state.name for state in row_states for column in state.writes}
        premature = sorted(set(columns) & set(written))
        if premature:
            raise DockRefused(
                f"new rows of {batch} carry column {premature[0]!r}, which state "
                f"{written[premature[0]]} writes; leave it out"
            )
        for state in row_states:
            missing = sorted(set(state.needs) - set(written) - set(columns))
            if missing:
                raise DockRefused(
                    f"rows of {batch} pass state {state.name}, which needs {missing}, but neither "
                    f"carry it nor pass a state that writes it (columns {sorted(columns)}, states "
                    f"{list(states)})"
                )

    def check_write(self, name: str, columns: Sequence[str], row_states: Sequence[str]) -> None:
        """Raise DockRefused for a write that lacks a column of the state or has one of another state's.

        row_states: states that the rows pass. Where it is the only one, no other state waits for its columns,
        and it may acknowledge without any.
        """
        state = self.state(name)
        missing = sorted(set(state.writes) - set(columns))
        if missing and (columns or set(row_states) != {name}):
            raise DockRefused(
                f"state {name} wrote columns {sorted(columns)}; it must write {sorted(state.writes)}"
            )
        for other_state in self.states:
            foreign = (
                sorted(set(columns) & set(other_state.writes)) if other_state is not state else []
            )
            if foreign:
                raise DockRefused(
                    f"state {name} wrote column {foreign[0]!r}, which state {other_state.name} writes; use "
                    "another name"
                )

    def to_json(self) -> list[dict[str, Any]]:
        """Return the graph as JSON for configuration files and messages."""
        return [state.to_json() for state in self.states]

    @classmethod
    def from_json(cls, items: Sequence[dict[str, Any]]) -> "StateGraph":
        """Parse what `to_json` returned."""
        return cls(
            states=tuple(
                State(name=item["name"], needs=tuple(item["needs"]), writes=tuple(item["writes"]))
                for item in items
            )
        )
