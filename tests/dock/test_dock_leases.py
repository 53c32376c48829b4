"""The thread that keeps a client's leases alive tells a restarted controller what is held now."""

import contextlib
import socket
import threading
from collections.abc import Iterator

from dock_conversations import sealed

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.clients.keeper import LeaseKeeper
from rljob_runtime.dock.wire.channel import ClientIdentity
from rljob_runtime.dock.wire.frames import (
    HEAD_BYTES,
    SUM_BYTES,
    DockMessage,
    Frame,
    FrameKind,
    pack,
    read_head,
)
from rljob_runtime.dock.wire.messages import ControllerWelcome, LeasedRows, Renew, RenewAnswer

WELCOME = ControllerWelcome(
    role="controller/a", machine="m", socket="", no_socket="", lease_seconds=600.0
)


def _receive(connection: socket.socket) -> Frame:
    head = connection.recv(HEAD_BYTES, socket.MSG_WAITALL)
    kind, header_bytes, _ = read_head(head, trusted=True)
    body = connection.recv(header_bytes + SUM_BYTES, socket.MSG_WAITALL)
    return Frame(kind, body[:-SUM_BYTES])


def _send(connection: socket.socket, message: DockMessage) -> None:
    packed = pack(message)
    connection.sendall(packed[:HEAD_BYTES] + sealed(packed[HEAD_BYTES:]))


@contextlib.contextmanager
def _greeted(server: socket.socket) -> Iterator[socket.socket]:
    """The next connection, after the hello."""
    connection, _ = server.accept()
    with connection:
        connection.settimeout(20)
        assert _receive(connection).kind is FrameKind.HELLO
        _send(connection, WELCOME)
        yield connection


def test_a_claim_made_while_a_renewal_breaks_off_is_announced_after_the_reconnection() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(20)
    address = DockAddress(
        token="t", warehouses=(), controllers={"a": ("127.0.0.1", server.getsockname()[1])}
    )
    told: list[LeasedRows] = []
    heard = threading.Event()

    def restarted_controller() -> None:
        with _greeted(server) as connection:
            while not heard.is_set():
                told.extend(_receive(connection).read(Renew).leases)
                _send(connection, RenewAnswer(lost=[]))
                if told:
                    heard.set()

    keeper = LeaseKeeper(
        role="controller/a", find=lambda: address, identity=ClientIdentity(owner="w", session="s")
    )
    with server:
        with _greeted(server) as first:
            _receive(first)  # a renewal of nothing, never answered
            keeper.hold("lease", ["row"])
        successor = threading.Thread(target=restarted_controller)
        successor.start()

        assert heard.wait(20)
        keeper.close()
        successor.join(20)

    assert told[0] == LeasedRows(lease="lease", uids=["row"])
