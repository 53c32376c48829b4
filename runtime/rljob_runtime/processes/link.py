"""Connect a driver to the process above it, which holds what outlives the driver, through a pipe.

Used by `on_ray`, which starts workers through it, and by `run.succession`. The other end is in `holder`.
"""

import os
import pickle
import sys
import threading
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Self

from rljob_runtime.errors import DeadlineError

if TYPE_CHECKING:
    from rljob_runtime.processes.on_ray import Reservation

ANSWER_SECONDS = 600.0
"""Ray alone may need half of it to start on a busy machine."""
KEEP = "keep"


class Link:
    """The driver's end of the pipe. Its threads may use it concurrently, one request at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._request_lock, self._send_lock = threading.Lock(), threading.Lock()

    @classmethod
    def inherited(cls, number: int) -> Self:
        """Return the link on a file descriptor that the process above has left open for this one."""
        os.set_inheritable(number, False)
        return cls(Connection(number))

    def ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of `Holder` by its name. Raises what the method raises."""
        with self._request_lock:
            self._send(method, arguments, named)
            if not self._connection.poll(ANSWER_SECONDS):
                raise DeadlineError(
                    f"the driver's supervisor did not answer within {ANSWER_SECONDS:g} s ({method})",
                    stage="supervisor",
                )
            value, error = pickle.loads(self._connection.recv_bytes())  # noqa: S301 (a pipe)
        if error is not None:
            raise error
        return value

    def keep(self, told: int | None = None, **values: Any) -> None:
        """Store all of these values for a driver that takes over, or none of them.

        Returns without waiting: the contents of the pipe outlive this process. told: number of reported
        steps, which ends a series of deaths.
        """
        self._send(KEEP, {name: dumps(value) for name, value in values.items()}, told)

    def kept(self) -> dict[str, bytes]:
        """Return the values that earlier drivers stored, by name, in a form that `pickle` reads."""
        return dict(self.ask("kept"))

    def _send(self, method: str, *contents: Any) -> None:
        """Send a message: the name of a method and its arguments."""
        message = dumps((method, contents))
        with self._send_lock:
            self._connection.send_bytes(message)

    def start(self, *described: Any) -> Any:
        """Start an actor, like `on_ray.start_actor`."""
        return self.ask("start", *described)

    def reserve(self, bundles: list[dict[str, float]]) -> "Reservation":
        """Reserve bundles of resources, like `on_ray.reserve`."""
        return self.ask("reserve", bundles)

    def hold_ports(self, count: int) -> list[int]:
        """Hold free ports, like `Workers.hold_ports`."""
        return list(self.ask("hold_ports", count))


def dumps(value: object) -> bytes:
    """Pickle a value. Ray's objects need Ray's own pickle so that another process can use them."""
    ray = sys.modules.get("ray")
    return bytes((ray.cloudpickle if ray else pickle).dumps(value))
