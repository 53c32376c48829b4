"""A server on a separate thread, for processes that also have other tasks (a Ray actor, a driver)."""

import asyncio
import contextlib
import logging
import threading
from typing import Protocol, Self

from rljob_runtime.dock.wire.busy import new_loop
from rljob_runtime.errors import DockError

log = logging.getLogger(__name__)

THREAD_SECONDS = 30.0
"""Timeout of `start` for the server to listen, and of `stop` for it to end."""


class Server(Protocol):
    """The interface of a `DockServer` or an `HttpServer`."""

    @property
    def role(self) -> str:
        """Return the short name that the server's thread and its log lines carry."""
        ...

    async def start(self) -> tuple[str, int]:
        """Listen for connections on the running event loop; return (host, port).

        Raises OSError when the port is taken.
        """
        ...

    async def stop(self) -> None:
        """Close the listeners and all connections, on the event loop that `start` ran on."""
        ...


class ServerThread:
    """Runs a server on a separate event loop between `start` and `stop`; a context manager."""

    def __init__(self, server: Server, *, seconds: float = THREAD_SECONDS) -> None:
        self.server, self._seconds = server, seconds
        # Not new_event_loop: Ray's workers use uvloop for it, on which the servers are not tested.
        self._loop = new_loop()
        self._ended = asyncio.Event()
        self._started = threading.Event()
        self._address: tuple[str, int] = ("", 0)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"{server.role}-server", daemon=True)

    def start(self) -> tuple[str, int]:
        """Listen for connections; return (host, port).

        Raises OSError when the port is taken, DockError at the deadline.
        """
        self._thread.start()
        if not self._started.wait(self._seconds):
            self._end()
            raise DockError(f"{self.server.role} did not listen within {self._seconds:g} s")
        if self._error is not None:
            raise self._error
        return self._address

    def stop(self) -> None:
        """Stop the server and wait for its thread.

        A thread that does not end is left to the end of the process: the run's own error report has priority.
        """
        if self._thread.is_alive():
            self._end()
            self._thread.join(self._seconds)
        if self._thread.is_alive():
            log.warning("role=%s did not stop within %g s", self.server.role, self._seconds)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _end(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has just closed
            self._loop.call_soon_threadsafe(self._ended.set)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._loop.close()
            self._started.set()

    async def _serve(self) -> None:
        self._address = await self.server.start()
        self._started.set()
        await self._ended.wait()
        await self.server.stop()
