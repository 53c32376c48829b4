"""A switchboard on this machine, and what processes need to come to it."""

from collections.abc import Iterator

import pytest

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.run.hangs.switchboard import Switchboard

TOKEN = "the-runs-secret-token"


@pytest.fixture
def board() -> Iterator[Switchboard]:
    with Switchboard(token=TOKEN, host="127.0.0.1") as found:
        yield found


@pytest.fixture
def run(board: Switchboard) -> DockAddress:
    return DockAddress(token=TOKEN, warehouses=(), controllers={}, switchboard=board.address)
