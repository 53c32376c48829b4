"""Spoiled conversations with whole servers: they answer or close, count it, and serve others on."""

import select
import socket
from collections.abc import Callable, Iterator

import numpy as np
import psutil
import pytest
from dock_conversations import (
    GRAPH,
    TOKEN,
    Frame,
    hello,
    packed,
    spoil,
    with_controller,
    with_warehouse,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.columns import Ragged
from rljob_runtime.dock.controller.controller_server import ControllerServer
from rljob_runtime.dock.rows import NewRow
from rljob_runtime.dock.thread import ServerThread
from rljob_runtime.dock.warehouse.warehouse_server import WarehouseServer
from rljob_runtime.dock.wire.frames import HEAD_BYTES, SUM_BYTES, FrameKind, pack_head, read_head
from rljob_runtime.dock.wire.wire_server import DockServer

ANSWER_SECONDS = 5.0
PATIENCE_SECONDS = 0.15
RELEASE = int(FrameKind.RELEASE).to_bytes(2, "little")
NOBODY = ("127.0.0.1", 1)


class Dock:
    """A warehouse that may hold a neighbour's rows, and the controllers, on threads."""

    def __init__(self) -> None:
        self.warehouse = WarehouseServer(
            index=0,
            graph=GRAPH,
            capacity_bytes=1 << 20,
            token=TOKEN,
            warehouses=[NOBODY, NOBODY],
        )
        self.threads = [ServerThread(self.warehouse)]
        places = {"warehouse/0": self.threads[0].start()}
        self.servers: dict[str, DockServer] = {"warehouse/0": self.warehouse}
        for state in GRAPH.names:
            controller = ControllerServer(
                state=state, graph=GRAPH, warehouses=[places["warehouse/0"]], token=TOKEN
            )
            self.threads.append(ServerThread(controller))
            places[f"controller/{state}"] = self.threads[-1].start()
            self.servers[f"controller/{state}"] = controller
        self.places = places
        self.rounds = 0
        self.feeder = DockClient(self.address(), state="generate", owner="good")
        self.reader = DockClient(self.address(), state="update", owner="good")

    def address(self) -> DockAddress:
        controllers = {state: self.places[f"controller/{state}"] for state in GRAPH.names}
        return DockAddress(
            token=TOKEN,
            warehouses=(self.places["warehouse/0"],),
            controllers=controllers,
            shared_memory="none",
        )

    def serves(self) -> None:
        """A good client's rows go all the way."""
        self.rounds += 1
        name = f"good-{self.rounds}"
        row = NewRow(
            uid=name, group=name, group_index=0, group_columns={"prompt": np.arange(3, dtype="i4")}
        )
        self.feeder.put_rows(name, [row], total=1, timeout_seconds=ANSWER_SECONDS)
        claim = self.feeder.claim(name, timeout_seconds=ANSWER_SECONDS)
        response = Ragged.from_rows([np.ones(2, dtype=np.float16)])
        assert self.feeder.write(claim.rows, {"response": response}).stored == 1
        claim = self.reader.claim(name, timeout_seconds=ANSWER_SECONDS)
        assert self.reader.read(claim.rows, ["response"])["response"].values.tolist() == [1, 1]
        self.reader.acknowledge(claim.rows)

    def close(self) -> None:
        for client in (self.feeder, self.reader):
            client.close()
        for thread in reversed(self.threads):
            thread.stop()


@pytest.fixture(scope="module")
def make_dock() -> Iterator[Callable[[], Dock]]:
    made: list[Dock] = []

    def make() -> Dock:
        made.append(Dock())
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rljob_runtime.dock.warehouse.standby_link.TAKE_OVER_SECONDS", 0.0)
        yield make
        for dock in made:
            dock.close()


@pytest.fixture(scope="module")
def dock(make_dock: Callable[[], Dock]) -> Dock:
    return make_dock()


def converse(
    place: tuple[str, int], messages: list[bytes], patience_seconds: float = PATIENCE_SECONDS
) -> list[FrameKind]:
    """Say one after the other; what was answered. Raises TimeoutError where a server neither
    answers nor closes."""
    answers: list[FrameKind] = []
    with socket.create_connection(place, timeout=ANSWER_SECONDS) as connection:
        try:
            for message in messages:
                connection.sendall(message)
                if message[6:8] == RELEASE:
                    continue
                answer = _answer(connection, patience_seconds)
                if answer is None:
                    break
                answers.append(answer)
        except (ConnectionError, BrokenPipeError):
            pass
    return answers


def _answer(connection: socket.socket, patience_seconds: float) -> FrameKind | None:
    """The next frame but notices, None at the end, which a server that waits for more is told."""
    while True:
        if not select.select([connection], [], [], patience_seconds)[0]:
            connection.shutdown(socket.SHUT_WR)
        head = connection.recv(HEAD_BYTES, socket.MSG_WAITALL)
        if len(head) < HEAD_BYTES:
            return None
        kind, header_bytes, payload_bytes = read_head(head, trusted=True)
        connection.recv(header_bytes + payload_bytes + SUM_BYTES, socket.MSG_WAITALL)
        if kind is not FrameKind.NOTICE:
            return kind


def refusals(dock: Dock) -> int:
    return sum(
        server.refused.total() + server.requests["failed"] for server in dock.servers.values()
    )


@pytest.mark.parametrize(
    ("role", "frames"),
    [("warehouse/0", with_warehouse()), ("controller/update", with_controller())],
    ids=["warehouse", "controller"],
)
@given(choices=st.lists(st.integers(0, 2**16), min_size=12, max_size=12))
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_a_spoiled_conversation_is_answered_or_closed_and_others_are_served(
    dock: Dock, role: str, frames: list[Frame], choices: list[int]
) -> None:
    left = iter(choices)
    messages = spoil(frames, lambda below: next(left, 0) % below)
    before = refusals(dock)

    answers = converse(dock.places[role], messages)

    assert set(answers) <= {FrameKind.DONE, FrameKind.FAILED}
    if FrameKind.FAILED in answers:
        assert refusals(dock) > before
    assert dock.servers[role].refused["internal"] == 0
    dock.serves()


def test_valid_conversations_are_answered_throughout(make_dock: Callable[[], Dock]) -> None:
    dock = make_dock()
    for role, frames in (
        ("warehouse/0", with_warehouse()),
        ("controller/update", with_controller()),
    ):
        answers = converse(dock.places[role], [packed(*frame) for frame in frames], ANSWER_SECONDS)

        assert answers.count(FrameKind.FAILED) == {"warehouse/0": 1, "controller/update": 2}[role]
        assert len(answers) == len(frames) - (role == "warehouse/0")
    stray = converse(dock.places["warehouse/0"], [packed(*hello("warehouse/9"))], ANSWER_SECONDS)
    assert stray == [FrameKind.FAILED]


def test_what_a_head_promises_and_nobody_sends_takes_no_memory(dock: Dock) -> None:
    promise = pack_head(FrameKind.WRITE, 10, 3 << 30)
    before = psutil.Process().memory_info().rss

    with socket.create_connection(dock.places["warehouse/0"], timeout=ANSWER_SECONDS) as connection:
        connection.sendall(packed(*hello("warehouse/0")))
        assert _answer(connection, ANSWER_SECONDS) is FrameKind.DONE
        connection.sendall(promise + bytes(300 << 10))
        dock.serves()

        assert psutil.Process().memory_info().rss - before < 256 << 20
