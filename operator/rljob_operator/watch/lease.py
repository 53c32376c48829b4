"""Leader election on a coordination.k8s.io/v1 Lease, which determines the replica that may act.

Called by `main`, which starts kopf once elected and exits when the lease is lost. As in client-go, another's
lease expires when *this process* has observed no change in it for its duration: no two clocks are compared.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeVar

from rljob_operator.errors import Conflict, LeadershipLost, NotFound, OperatorError, Unreachable
from rljob_operator.kube.kube_answers import Manifest

logger = logging.getLogger(__name__)

API = ("coordination.k8s.io/v1", "Lease")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """Times in seconds. A leader gives up `deadline` after its last renewal, before others may take over."""

    duration: float = 15.0
    deadline: float = 10.0
    retry: float = 2.0


@dataclass(frozen=True, slots=True)
class Sighting:
    """A lease's spec as last observed ({} if there is none), and when that spec was first observed."""

    spec: Manifest
    since: float


Decision = Literal["create", "take", "renew", "wait"]


def sighting_after(before: Sighting | None, spec: Manifest, monotonic_s: float) -> Sighting:
    """Return the sighting after the spec was read at `monotonic_s`: an unchanged spec keeps its age."""
    return before if before is not None and before.spec == spec else Sighting(spec, monotonic_s)


def decide(sighting: Sighting | None, me: str, monotonic_s: float) -> Decision:
    """Return what to do about a lease (None: there is none)."""
    if sighting is None:
        return "create"
    holder = sighting.spec.get("holderIdentity")
    if holder == me:
        return "renew"
    if not holder:
        return "take"
    expires = sighting.since + sighting.spec.get("leaseDurationSeconds", 0)
    return "take" if monotonic_s >= expires else "wait"


def spec_of(me: str, before: Manifest, *, times: LeaseTimes, wall_time: datetime) -> Manifest:
    """Return the spec that a holder writes; taking over counts a transition."""
    stamp = wall_time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    same = before.get("holderIdentity") == me
    return {
        "holderIdentity": me,
        "leaseDurationSeconds": round(times.duration),
        "acquireTime": before.get("acquireTime", stamp) if same else stamp,
        "renewTime": stamp,
        "leaseTransitions": before.get("leaseTransitions", 0) + (0 if same or not before else 1),
    }


class LeaseStore(Protocol):
    """The methods of `Kube` for leases."""

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Manifest:
        """Return the stored lease, with its resourceVersion. Raises NotFound."""
        ...

    async def create(self, manifest: Manifest) -> Manifest:
        """Create the lease. Raises Conflict if it exists, as another candidate was faster."""
        ...

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace the lease. Raises Conflict if it changed since the manifest's resourceVersion."""
        ...


class LeaderLease:
    """One candidate for one lease. me: unique per process, also after a restart of the same pod."""

    def __init__(
        self,
        kube: LeaseStore,
        *,
        namespace: str,
        name: str,
        me: str,
        times: LeaseTimes | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Coroutine[Any, Any, None]] = asyncio.sleep,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._kube = kube
        self._namespace, self._name, self._me = namespace, name, me
        self._times = times or LeaseTimes()
        self._clock, self._sleep, self._wall = clock, sleep, wall
        self._sighting: Sighting | None = None
        self._renewed: float | None = None

    def is_leader(self) -> bool:
        """Return whether this process may act: it renewed within the deadline."""
        return self._renewed is not None and self._left() > 0

    async def run(self, *, elected: Callable[[], None], lost: Callable[[], None]) -> None:
        """Wait for the lease, call `elected`, renew until it is lost, call `lost`.

        `lost` is also called when this task is cancelled, which releases the lease.
        """
        await self.acquire()
        elected()
        try:
            await self.keep()
        except LeadershipLost as error:
            logger.error("leadership lost: %s", error)
        except asyncio.CancelledError:
            await self.release()
            raise
        finally:
            lost()

    async def acquire(self) -> None:
        """Return once this process holds the lease."""
        while not await self._try(self._times.deadline):
            await self._sleep(self._times.retry)
        logger.info("leader lease=%s/%s me=%s", self._namespace, self._name, self._me)

    async def keep(self) -> None:
        """Renew until that fails for `deadline` seconds. Raises LeadershipLost."""
        while True:
            await self._sleep(min(self._times.retry, max(0.0, self._left())))
            left = self._left()
            if left > 0 and await self._try(left):
                continue
            holder = self._sighting.spec.get("holderIdentity") if self._sighting else None
            if self._left() <= 0 or holder != self._me:
                self._renewed = None
                raise LeadershipLost(
                    f"lease {self._namespace}/{self._name} not renewed for "
                    f"{self._times.deadline:.0f} s or held by another ({holder})"
                )

    async def release(self) -> None:
        """Release the lease, so that a standby need not wait for it to expire."""
        if not self.is_leader():
            return
        self._renewed = None
        with contextlib.suppress(OperatorError):
            lease = await self._within(self._times.retry, self._get())
            if lease is not None and lease["spec"].get("holderIdentity") == self._me:
                spec = {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                await self._within(self._times.retry, self._kube.replace({**lease, "spec": spec}))

    def _left(self) -> float:
        return (self._renewed or 0.0) + self._times.deadline - self._clock()

    async def _try(self, seconds: float) -> bool:
        """Create, take or renew the lease; return False if that was not possible."""
        # Time before the request: others may count from the moment that the server wrote it.
        began = self._clock()
        try:
            written = await self._within(seconds, self._write())
        except Conflict:
            return False  # another was faster; the next read shows which
        except OperatorError as error:
            logger.warning("lease not written lease=%s/%s: %s", self._namespace, self._name, error)
            return False
        if written:
            self._renewed = began
        return written

    async def _write(self) -> bool:
        lease = await self._get()
        if lease is None:
            self._sighting = None
        else:
            self._sighting = sighting_after(self._sighting, lease.get("spec", {}), self._clock())
        decision = decide(self._sighting, self._me, self._clock())
        if decision == "wait":
            return False
        before = {} if self._sighting is None else self._sighting.spec
        spec = spec_of(self._me, before, times=self._times, wall_time=self._wall())
        if lease is None:
            await self._kube.create(self._manifest(spec))
        else:
            await self._kube.replace({**lease, "spec": spec})
        self._sighting = Sighting(spec, self._clock())
        return True

    async def _get(self) -> Manifest | None:
        try:
            return await self._kube.get(*API, self._namespace, self._name)
        except NotFound:
            return None

    def _manifest(self, spec: Manifest) -> Manifest:
        metadata = {"namespace": self._namespace, "name": self._name}
        return {"apiVersion": API[0], "kind": API[1], "metadata": metadata, "spec": spec}

    async def _within(self, seconds: float, call: Awaitable[T]) -> T:
        """Return the call's result. Raises Unreachable if it takes longer."""
        task = asyncio.ensure_future(call)
        pause = asyncio.ensure_future(self._sleep(seconds))
        try:
            await asyncio.wait({task, pause}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Unreachable(
                    f"lease {self._namespace}/{self._name}: no answer in {seconds:.1f} s"
                )
            return task.result()
        finally:
            task.cancel()
            pause.cancel()
            await asyncio.gather(task, pause, return_exceptions=True)
