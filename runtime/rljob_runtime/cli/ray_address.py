"""Check that a Ray cluster listens at RAY_ADDRESS. Called before `ray.init`, which retries for minutes and
does not name the variable."""

import socket
import time

from rljob_runtime.errors import WorkerError

SECONDS = 20.0
"""Limit of the wait: a starting head listens within seconds."""
PAUSE_SECONDS = 1.0


def check_ray_answers(address: str | None, *, seconds: float = SECONDS) -> None:
    """Return once something listens at the address; return immediately without an address, or for one without
    host and port (`auto`). Raises WorkerError after `seconds`."""
    host, _, port = (address or "").rpartition("://")[2].rpartition(":")
    if not host or not port.isdigit():
        return
    deadline = time.monotonic() + seconds
    while (error := _refusal(host.strip("[]"), int(port))) is not None:
        if time.monotonic() + PAUSE_SECONDS > deadline:
            raise WorkerError(
                f"RAY_ADDRESS is {address!r}, and no Ray cluster answered there within {seconds:g} s "
                f"({error}); unset it to train on this machine alone, or set it to a cluster that runs"
            ) from error
        time.sleep(PAUSE_SECONDS)


def _refusal(host: str, port: int) -> OSError | None:
    """Return why the connection failed; None where it succeeded."""
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError as error:
        return error
    return None
