"""A driver's way to the process above it, where what outlives the driver is: a pipe.

Used by `on_ray`, which makes workers through it, and by `run.succession`. The other end is `holder`'s.
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
"""Ray alone may take half of it to start on a machine that is busy."""
KEEP = "keep"


class Link:
    """The driver's end. Used from its threads, one question at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._asks, self._says = threading.Lock(), threading.Lock()

    @classmethod
    def inherited(cls, number: int) -> Self:
        """Of a file that the process above has left open for this one."""
        os.set_inheritable(number, False)
        return cls(Connection(number))

    def ask(self, what: str, *arguments: Any, **named: Any) -> Any:
        """A method of `Holder`'s, by its name. Raises what it raises."""
        with self._asks:
            self._say(what, arguments, named)
            if not self._connection.poll(ANSWER_SECONDS):
                raise DeadlineError(
                    f"the driver's supervisor did not answer within {ANSWER_SECONDS:g} s ({what})",
                    stage="supervisor",
                )
            value, error = pickle.loads(self._connection.recv_bytes())  # noqa: S301 (a pipe)
        if error is not None:
            raise error
        return value

    def keep(self, told: int | None = None, **values: Any) -> None:
        """Keep these for a driver that takes over, all of them or none. Waits for nobody: what is in the pipe
        outlives this process. told: steps that were, which ends a row of deaths."""
        self._say(KEEP, {name: dumps(value) for name, value in values.items()}, told)

    def kept(self) -> dict[str, bytes]:
        """What drivers before have kept, by name, as `pickle` reads it."""
        return dict(self.ask("kept"))

    def _say(self, what: str, *rest: Any) -> None:
        message = dumps((what, rest))
        with self._says:
            self._connection.send_bytes(message)

    def start(self, *described: Any) -> Any:
        """As `on_ray.start_actor`."""
        return self.ask("start", *described)

    def reserve(self, bundles: list[dict[str, float]]) -> "Reservation":
        """As `on_ray.reserve`."""
        return self.ask("reserve", bundles)

    def hold_ports(self, count: int) -> list[int]:
        """As `Workers` do."""
        return list(self.ask("hold_ports", count))


def dumps(value: object) -> bytes:
    """Whatever is Ray's in it, its own pickle alone writes so that another process can use it."""
    ray = sys.modules.get("ray")
    return bytes((ray.cloudpickle if ray else pickle).dumps(value))
