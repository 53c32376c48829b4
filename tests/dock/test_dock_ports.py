"""Ports are the dock's own, with a server on them or without."""

import socket

import pytest

from rljob_runtime.dock.ports import ReservedPorts


def listen(port: int, *, reusing: bool) -> socket.socket:
    server = socket.socket()
    if reusing:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind(("127.0.0.1", port))
        server.listen()
    except OSError:
        server.close()
        raise
    return server


def test_two_docks_never_hold_the_same_port() -> None:
    with ReservedPorts(40) as ours, ReservedPorts(40) as theirs:
        assert len({*ours, *theirs}) == 80


def test_a_server_listens_on_a_held_port_and_its_next_life_does_again() -> None:
    with ReservedPorts(1) as ports:
        (port,) = ports
        for _ in range(2):
            with listen(port, reusing=True), socket.create_connection(("127.0.0.1", port)):
                pass


def test_a_connection_to_a_held_port_without_a_server_is_refused() -> None:
    with ReservedPorts(1) as ports:
        (port,) = ports
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))


def test_others_cannot_take_a_held_port_and_can_when_it_is_let_go() -> None:
    with ReservedPorts(1) as ports:
        (port,) = ports
        with pytest.raises(OSError, match="in use"):
            listen(port, reusing=False)
    listen(port, reusing=False).close()
