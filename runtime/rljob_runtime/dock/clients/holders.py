"""Owners of rows when a warehouse stays full; the controllers know them, the warehouse does not."""

import contextlib
from collections.abc import Iterator

from rljob_runtime.dock.clients.connections import Connections
from rljob_runtime.dock.wire.messages import AskControllerStats
from rljob_runtime.errors import DockError, DockFull

ANSWER_SECONDS = 2.0


@contextlib.contextmanager
def add_holders_to_errors(connections: Connections) -> Iterator[None]:
    """Add to a DockFull which owners hold claimed rows of which states."""
    try:
        yield
    except DockFull as error:
        raise DockFull(f"{error}; {_holders(connections)}") from error


def _holders(connections: Connections) -> str:
    descriptions: list[str] = []
    for role in connections.controller_roles:
        state = role.partition("/")[2]
        try:
            owners = connections.ask(role, AskControllerStats(), ANSWER_SECONDS).holders
        except DockError as error:
            descriptions.append(f"state {state}: {error}")
            continue
        descriptions += [
            f"state {state}: {owner} holds {count} rows" for owner, count in owners.items()
        ]
    return "; ".join(descriptions) or "nobody holds a claim"
