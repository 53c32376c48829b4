"""Who holds rows when a warehouse stays full: what the warehouse cannot know, and the controllers do."""

import contextlib
from collections.abc import Iterator

from rljob_runtime.dock.clients.connections import Connections
from rljob_runtime.dock.wire.messages import AskController
from rljob_runtime.errors import DockError, DockFull

ANSWER_SECONDS = 2.0


@contextlib.contextmanager
def naming_holders(connections: Connections) -> Iterator[None]:
    """Add to a DockFull which owners hold claimed rows of which states."""
    try:
        yield
    except DockFull as error:
        raise DockFull(f"{error}; {_holders(connections)}") from error


def _holders(connections: Connections) -> str:
    held: list[str] = []
    for role in connections.controller_roles:
        state = role.partition("/")[2]
        try:
            owners = connections.ask(role, AskController(), ANSWER_SECONDS).holders
        except DockError as error:
            held.append(f"state {state}: {error}")
            continue
        held += [f"state {state}: {owner} holds {count} rows" for owner, count in owners.items()]
    return "; ".join(held) or "nobody holds a claim"
