"""What this machine does without any system: copy memory, and go round a Unix socket."""

import multiprocessing
import socket
import time

import numpy as np

MESSAGE_BYTES = 64


class Copying:
    """Copies between two warm arrays of so many bytes, with one thread."""

    def __init__(self, num_bytes: int) -> None:
        self._source = np.ones(num_bytes, dtype=np.uint8)
        self._target = np.zeros(num_bytes, dtype=np.uint8)

    def rate(self) -> float:
        """MB/s of one copy."""
        started = time.perf_counter()
        np.copyto(self._target, self._source)
        return self._source.nbytes / (time.perf_counter() - started) / 1e6


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
