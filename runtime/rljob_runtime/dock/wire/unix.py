"""Unix sockets in addition to TCP, for processes on the same machine as a server.

Only the socket is in the shared directory, under an unpredictable name that is never used twice; no data is
there.
"""

import contextlib
import logging
import os
import platform
import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.01
MAX_PATH_BYTES = 107
"""Maximum length of a socket's address on Linux; longer paths are opened through their directory."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """Return an id that is equal for all processes under one running kernel, in any container."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return platform.node()


def listen(directory: Path, name: str) -> tuple[socket.socket, Path]:
    """Return a listening socket `NAME-<nonce>.sock` in the directory, which is created if it is missing.

    Removes the sockets of dead servers of that name. Raises OSError.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for stale in directory.glob(f"{name}-*.sock"):
        _remove_dead(stale)
    path = directory / f"{name}-{secrets.token_hex(8)}.sock"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as address:
            listener.bind(address)
        path.chmod(0o660)
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener, path


def connect(path: Path, timeout_seconds: float) -> socket.socket:
    """Return a connection to the socket at `path`.

    Raises OSError; TimeoutError while the server accepts no more connections.
    """
    deadline = time.monotonic() + timeout_seconds
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout_seconds)
        try:
            with _short(path) as address:
                connection.connect(address)
            return connection
        except BlockingIOError as error:
            connection.close()  # its queue is full; unlike over TCP the system does not wait
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} takes no more connections") from error
            time.sleep(PAUSE_SECONDS)
        except OSError:
            connection.close()
            raise


def send_descriptors(connection: int, data: bytes, descriptors: Sequence[int]) -> bool:
    """Send data and the descriptors, which are closed here; return False unless one call sent all of it."""
    try:
        with socket.socket(fileno=os.dup(connection)) as duplicate:
            return socket.send_fds(duplicate, [data], descriptors) == len(data)
    except OSError:
        return False
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield an address for the path that fits into a socket's address."""
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _remove_dead(path: Path) -> None:
    try:
        connect(path, 1.0).close()
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.debug("socket %s is left: %s", path, error)
