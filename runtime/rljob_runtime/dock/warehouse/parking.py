"""Messages that wait for room in a warehouse, in order, until rows are freed or their deadline."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from rljob_runtime.dock.warehouse.slabs import NoRoom
from rljob_runtime.dock.wire.peer import Answer, Reply
from rljob_runtime.errors import DockError

Attempt = Callable[[], Reply]
"""Carries a message out; raises NoRoom, with nothing done, when it does not fit now."""


@dataclass(slots=True)
class _ParkedMessage:
    attempt: Attempt
    answer: asyncio.Future[Reply]


@dataclass(slots=True, kw_only=True)
class Parking:
    """A queue of waiting messages.

    changed: called after each message that was carried out. full: returns the error of a message that timed
    out after so many seconds.
    """

    changed: Callable[[], None]
    full: Callable[[float], DockError]
    _parked: deque[_ParkedMessage] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._parked)

    def admit(self, attempt: Attempt, timeout_seconds: float) -> Answer:
        """Carry the message out now, or in its turn when there is room."""
        if not self._parked:
            try:
                reply = attempt()
            except NoRoom:
                pass
            else:
                self.changed()
                return reply
        return self._park(attempt, timeout_seconds)

    def let_in(self) -> None:
        """Carry out the messages that fit, oldest first; called after rows were freed."""
        while self._parked and self._try(self._parked[0]):
            self._parked.popleft()

    async def _park(self, attempt: Attempt, timeout_seconds: float) -> Reply:
        parked = _ParkedMessage(attempt, asyncio.get_running_loop().create_future())
        since = time.monotonic()
        self._parked.append(parked)
        self.changed()  # rows may have been freed between the message and this turn of the loop
        try:
            reply = await asyncio.wait_for(parked.answer, timeout_seconds)
        except TimeoutError:
            raise self.full(timeout_seconds) from None
        finally:
            if parked in self._parked:
                self._parked.remove(parked)
        waited = time.monotonic() - since
        return replace(reply, message=msgspec.structs.replace(reply.message, waited=waited))

    def _try(self, parked: _ParkedMessage) -> bool:
        if parked.answer.done():
            return True
        try:
            parked.answer.set_result(parked.attempt())
        except NoRoom:
            return False
        except DockError as error:
            parked.answer.set_exception(error)
        return True
