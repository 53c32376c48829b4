"""Keeps a client's leases alive: a thread that renews them while the process lives.

It finds a crashed or frozen worker by its silence, not a worker that computes for long; stage
deadlines are the driver's. After a controller's restart it announces the leases again at once.
"""

import logging
import select
import threading
from collections.abc import Callable

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.wire.channel import Channel, Identity
from rljob_runtime.dock.wire.frames import Frame
from rljob_runtime.dock.wire.messages import ControllerWelcome, HeldLease, Renew
from rljob_runtime.errors import DockError

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
RECONNECT_SECONDS = 1.0
PAUSE_SECONDS = 0.25


class LeaseKeeper:
    """Renews what `hold` was told, on a connection of its own, until `release` or `close`."""

    def __init__(self, *, role: str, find: Callable[[], DockAddress], identity: Identity) -> None:
        self._interval = 1.0
        self._held: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._reconnected = False
        self._channel = Channel(role=role, find=find, identity=identity, on_connect=self._greeted)
        self._thread = threading.Thread(target=self._run, name="dock-leases", daemon=True)
        self._thread.start()

    def hold(self, lease: str, uids: list[str]) -> None:
        """Keep these rows."""
        with self._lock:
            self._held.setdefault(lease, set()).update(uids)

    def release(self, lease: str, uids: list[str]) -> None:
        """The rows are done or given back."""
        with self._lock:
            left = self._held.get(lease, set())
            left.difference_update(uids)
            if not left:
                self._held.pop(lease, None)

    def held(self) -> dict[str, list[str]]:
        """Uids by lease."""
        with self._lock:
            return {lease: sorted(uids) for lease, uids in self._held.items()}

    def close(self) -> None:
        """End the thread; rows that are still held go back when the connections close."""
        self._ended.set()
        self._thread.join(timeout=2 * RECONNECT_SECONDS)
        self._channel.close()

    def _greeted(self, channel: Channel, frame: Frame) -> None:
        self._interval = frame.read(ControllerWelcome).lease_seconds / RENEWALS_PER_LEASE
        self._reconnected = True

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._renew()
            except DockError as error:
                log.info("leases could not be renewed: %s", error)
                self._channel.close()
                self._ended.wait(PAUSE_SECONDS)
                continue
            self._sleep()

    def _renew(self) -> None:
        """Renew what is held; again after a reconnection, which may have sent an older list."""
        self._reconnected = True
        while self._reconnected:
            self._reconnected = False
            self._send_renewal()

    def _send_renewal(self) -> None:
        leases = [HeldLease(lease=lease, uids=uids) for lease, uids in self.held().items()]
        lost = self._channel.ask(Renew(leases=leases), timeout_seconds=RECONNECT_SECONDS).lost
        if lost:
            log.warning("%d rows were given to others, the first is %s", len(lost), lost[0])
            for held in leases:
                self.release(held.lease, lost)

    def _sleep(self) -> None:
        """Until the next renewal is due or the connection breaks; looks at `close` four a second."""
        waited, poll = 0.0, select.poll()
        poll.register(self._channel, select.POLLIN)
        while waited < self._interval and not self._ended.is_set():
            part = min(PAUSE_SECONDS, self._interval - waited)
            waited += part
            if poll.poll(1000 * part):
                self._channel.close()  # the server says nothing by itself: this is its end
                return
