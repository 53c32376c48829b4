"""Renewal of a client's leases: a thread that renews them while the process lives.

It detects a crashed or frozen worker by its silence, not a worker that computes for long; stage deadlines are
the driver's task. After a controller's restart it announces the leases again immediately.
"""

import logging
import select
import threading
from collections.abc import Callable

from rljob_runtime.dock.address import DockAddress
from rljob_runtime.dock.wire.channel import Channel, ClientIdentity
from rljob_runtime.dock.wire.frames import Frame
from rljob_runtime.dock.wire.messages import ControllerWelcome, LeasedRows, Renew
from rljob_runtime.errors import DockError

log = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
RECONNECT_SECONDS = 1.0
PAUSE_SECONDS = 0.25


class LeaseKeeper:
    """Renews the leases that `hold` registered, on a separate connection, until `release` or `close`."""

    def __init__(
        self, *, role: str, find: Callable[[], DockAddress], identity: ClientIdentity
    ) -> None:
        self._interval = 1.0
        self._leases: dict[str, set[str]] = {}
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._reconnected = False
        self._channel = Channel(
            role=role, find=find, identity=identity, on_connect=self._on_welcome
        )
        self._thread = threading.Thread(target=self._run, name="dock-leases", daemon=True)
        self._thread.start()

    def hold(self, lease: str, uids: list[str]) -> None:
        """Register rows of a lease."""
        with self._lock:
            self._leases.setdefault(lease, set()).update(uids)

    def release(self, lease: str, uids: list[str]) -> None:
        """Remove rows that are done or returned."""
        with self._lock:
            remaining = self._leases.get(lease, set())
            remaining.difference_update(uids)
            if not remaining:
                self._leases.pop(lease, None)

    def leases(self) -> dict[str, list[str]]:
        """Return the uids by lease."""
        with self._lock:
            return {lease: sorted(uids) for lease, uids in self._leases.items()}

    def close(self) -> None:
        """Stop the thread; rows that are still leased are returned when the connections close."""
        self._ended.set()
        self._thread.join(timeout=2 * RECONNECT_SECONDS)
        self._channel.close()

    def _on_welcome(self, channel: Channel, frame: Frame) -> None:
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
        """Renew the leases, and again after a reconnection, which may have sent an older list."""
        self._reconnected = True
        while self._reconnected:
            self._reconnected = False
            self._send_renewal()

    def _send_renewal(self) -> None:
        leases = [LeasedRows(lease=lease, uids=uids) for lease, uids in self.leases().items()]
        lost = self._channel.ask(Renew(leases=leases), timeout_seconds=RECONNECT_SECONDS).lost
        if lost:
            log.warning("%d rows were given to others, the first is %s", len(lost), lost[0])
            for leased in leases:
                self.release(leased.lease, lost)

    def _sleep(self) -> None:
        """Sleep until the next renewal is due or the connection breaks; check for `close` four times a
        second."""
        waited, poll = 0.0, select.poll()
        poll.register(self._channel, select.POLLIN)
        while waited < self._interval and not self._ended.is_set():
            pause = min(PAUSE_SECONDS, self._interval - waited)
            waited += pause
            if poll.poll(1000 * pause):
                self._channel.close()  # the server sends nothing unrequested: the connection ended
                return
