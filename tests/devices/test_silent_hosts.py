"""Whoever waits for a host that is gone hears it: every connection of a process over TCP is probed."""

import ctypes
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from forked_ranks import on_ranks

from rljob_runtime.devices import silent_hosts
from rljob_runtime.devices.silent_hosts import (
    PROBE_SECONDS,
    PROBES,
    is_unanswered,
    probe_connections,
)

SO_ATTACH_FILTER = 26
WAIT_SECONDS = 30.0


def settings(connection: socket.socket) -> tuple[int, ...]:
    names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    asked = [connection.getsockopt(socket.IPPROTO_TCP, name) for name in names]
    return connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), *asked


def test_connections_over_tcp_are_probed_and_nothing_else_is_touched():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        pair = socket.socketpair()

        assert probe_connections() >= 2

        assert settings(client) == settings(accepted) == (1, PROBE_SECONDS, PROBE_SECONDS, PROBES)
        assert settings(server)[0] == 0
        client.sendall(b"as before")
        assert accepted.recv(9) == b"as before"
        for end in pair:
            end.close()


def probed(rank: int) -> tuple[int, set[tuple[int, ...]]]:
    """Connections that were found, and the settings of all that reach another process."""
    found, there = probe_connections(), set()
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as connection:
                connection.getpeername()
                if connection.family == socket.AF_INET:
                    there.add(settings(connection))
        except OSError:
            continue
    return found, there


def test_gloos_own_connections_are_among_them():
    for found, there in on_ranks(2, probed):
        assert found >= 1
        assert there == {(1, PROBE_SECONDS, PROBE_SECONDS, PROBES)}


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
        server.accept()[0] as accepted,
    ):
        yield client, accepted


def lose_its_packets(connection: socket.socket) -> None:
    """As those to a host that is gone: the kernel throws them away before it answers."""
    instruction = ctypes.create_string_buffer(b"\x06\0\0\0\0\0\0\0")  # BPF: return 0
    program = (ctypes.c_uint64 * 2)(1, ctypes.addressof(instruction))
    connection.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, bytes(program))


def test_what_is_on_its_way_to_a_host_that_is_gone_does_not_hold_up_who_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(silent_hosts, "UNANSWERED", 2)
    monkeypatch.setattr(silent_hosts, "UNANSWERED_SECONDS", 0.5)
    monkeypatch.setattr(silent_hosts, "PROBE_SECONDS", 1)

    def waits(rank: int) -> float:
        with connected() as (client, other), connected() as (busy, _):
            lose_its_packets(other)
            client.sendall(b"gradients")
            busy.setblocking(False)
            while True:  # until one who lives and does not read takes no more
                try:
                    busy.send(bytes(1 << 16))
                except BlockingIOError:
                    break
            began = time.monotonic()
            probe_connections()
            client.settimeout(WAIT_SECONDS)
            assert client.recv(1) == b""
            time.sleep(1.0)
            assert not is_unanswered(busy)
            with pytest.raises(BlockingIOError):
                busy.recv(1)
            return time.monotonic() - began

    (waited,) = on_ranks(1, waits)
    assert waited < WAIT_SECONDS
