"""Whether a Ray cluster listens where RAY_ADDRESS says. Called before `ray.init`, which tries for minutes and
does not name the variable."""

import socket
import time

from rljob_runtime.errors import WorkerError

SECONDS = 20.0
"""A head that is starting listens within seconds."""
PAUSE_SECONDS = 1.0


def check_ray_answers(address: str | None, *, seconds: float = SECONDS) -> None:
    """Return once something listens at the address, and at once for none or one without a host and a port
    (`auto`). Raises WorkerError after so many seconds."""
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
    """Why there is no connection; None where there is one."""
    try:
        socket.create_connection((host, port), timeout=5).close()
    except OSError as error:
        return error
    return None
