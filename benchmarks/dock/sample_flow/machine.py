"""What this machine does without any system: go round a Unix socket."""

import multiprocessing
import socket
import time

MESSAGE_BYTES = 64


def round_trips(count: int) -> list[float]:
    """Seconds of small messages to another process and back, over a Unix socket."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    forked = multiprocessing.get_context("fork")
    echo = forked.Process(target=_echo, args=(here, there), daemon=True)
    echo.start()
    there.close()
    message, seconds = bytes(MESSAGE_BYTES), []
    with here:
        for _ in range(count):
            started = time.perf_counter()
            here.sendall(message)
            here.recv(MESSAGE_BYTES)
            seconds.append(time.perf_counter() - started)
    echo.join()
    return seconds


def _echo(far: socket.socket, connection: socket.socket) -> None:
    far.close()  # forked along; open, it would hide the end
    while message := connection.recv(MESSAGE_BYTES):
        connection.sendall(message)
