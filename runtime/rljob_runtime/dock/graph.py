"""The dataflow graph of a job: which state needs and writes which columns.

Given to every server at start. Pure; the warehouse checks messages against it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rljob_runtime.errors import DockRefused

NEW_ROWS = "feed"
"""In place of a state, for columns that come with the new rows."""
OTHER_COLUMNS = "other"
"""In place of a state, for columns that the graph does not name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A consumer of rows, e.g. reward: needs (prompt, response), writes (reward,).

    A row is ready for the state once it has all columns of `needs`. Writing all columns of `writes`
    acknowledges it; a state that writes nothing, or is the only one that the row passes, may
    acknowledge without columns.
    """

    name: str
    needs: tuple[str, ...]
    writes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For configuration files and messages."""
        return {"name": self.name, "needs": list(self.needs), "writes": list(self.writes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StateGraph:
    """The states of a job. Columns that no state writes come with the new rows.

    Raises ValueError when a name is there twice or two states write one column.
    """

    states: tuple[State, ...]

    def __post_init__(self) -> None:
        names = [state.name for state in self.states]
        written = [column for state in self.states for column in state.writes]
        for what, items in (("state", names), ("written column", written)):
            twice = sorted({item for item in items if items.count(item) > 1})
            if twice:
                raise ValueError(f"{what} {twice[0]!r} is declared twice; it may be once")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the states, in order."""
        return tuple(state.name for state in self.states)

    def state(self, name: str) -> State:
        """The state of that name. Raises DockRefused."""
        for state in self.states:
            if state.name == name:
                return state
        raise DockRefused(f"state {name!r} is not in the graph; its states are {list(self.names)}")

    def writer(self, column: str) -> str:
        """The state that writes a column, NEW_ROWS, or OTHER_COLUMNS."""
        for state in self.states:
            if column in state.writes:
                return state.name
        needed = any(column in state.needs for state in self.states)
        return NEW_ROWS if needed else OTHER_COLUMNS

    def first_writer(self, columns: Collection[str]) -> str:
        """Who comes first of those that write these columns: the others may be waiting for it."""
        writers = {self.writer(column) for column in columns}
        return next((name for name in self.names if name in writers), NEW_ROWS)

    def check_new_rows(self, batch: str, states: Sequence[str], columns: Sequence[str]) -> None:
        """Refuse rows on which one of their states would wait for ever."""
        passed = [self.state(name) for name in states]
        if not passed:
            raise DockRefused(f"rows of {batch} pass no state; name at least one")
        written = {column: state.name for state in passed for column in state.writes}
        early = sorted(set(columns) & set(written))
        if early:
            raise DockRefused(
                f"new rows of {batch} carry column {early[0]!r}, which state "
                f"{written[early[0]]} writes; leave it out"
            )
        for state in passed:
            missing = sorted(set(state.needs) - set(written) - set(columns))
            if missing:
                raise DockRefused(
                    f"rows of {batch} pass state {state.name}, which needs {missing}, but neither "
                    f"carry it nor pass a state that writes it (columns {sorted(columns)}, states "
                    f"{list(states)})"
                )

    def check_write(self, name: str, columns: Sequence[str], passed: Sequence[str]) -> None:
        """Refuse a write of the state that lacks one of its columns or has one of another state's.

        passed: states of the rows. Where it is the only one, nobody waits for its columns, and it may
        acknowledge without any.
        """
        state = self.state(name)
        missing = sorted(set(state.writes) - set(columns))
        if missing and (columns or set(passed) != {name}):
            raise DockRefused(
                f"state {name} wrote columns {sorted(columns)}; it must write {sorted(state.writes)}"
            )
        for other in self.states:
            taken = sorted(set(columns) & set(other.writes)) if other is not state else []
            if taken:
                raise DockRefused(
                    f"state {name} wrote column {taken[0]!r}, which state {other.name} writes; use "
                    "another name"
                )

    def to_json(self) -> list[dict[str, Any]]:
        """For configuration files and messages."""
        return [state.to_json() for state in self.states]

    @classmethod
    def from_json(cls, items: Sequence[dict[str, Any]]) -> "StateGraph":
        """The inverse of to_json."""
        return cls(
            states=tuple(
                State(name=item["name"], needs=tuple(item["needs"]), writes=tuple(item["writes"]))
                for item in items
            )
        )
