"""Requests for another number of rollout devices, between the user and the driver that carries them out.

The status server makes requests on its own thread. `elastic` reads the latest one and publishes the progress.
Numbers that the job cannot have are refused before they reach the driver.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rljob_api.check.scale_rules import scale_problems
from rljob_api.topology.elastic import DevicePlace, RolloutReport, is_elastic
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.errors import ScaleRefused
from rljob_runtime.processes.clock import unix_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRequest:
    """A requested number of rollout devices. turn: number of the request; 0 is the job's own number of
    devices."""

    count: int
    turn: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _DeviceStatus:
    """The state of the rollout devices that the driver published last. generating: in order; the last ones
    leave first."""

    generating: tuple[DevicePlace, ...] = ()
    hosts: tuple[str, ...] = ()
    joining: int = 0
    message: str = ""


class ScaleRequests:
    """The number of rollout devices of one run: requested and present."""

    def __init__(
        self,
        job: ResolvedJob,
        *,
        latest: ScaleRequest | None = None,
        persist: Callable[[ScaleRequest], None] = lambda _: None,
        clock: Callable[[], float] = unix_seconds,
    ) -> None:
        """latest: the request that a dead driver had. persist: called with each request before it is
        answered."""
        self._job, self._persist = job, persist
        self._clock = clock
        self._lock = threading.Lock()
        initial_count = job.spec.roles.rollout
        self._latest = latest or ScaleRequest(count=initial_count, turn=0, time=clock())
        self._status = _DeviceStatus()

    @property
    def latest(self) -> ScaleRequest:
        """The latest request for a number of devices."""
        return self._latest

    def ask(self, count: int) -> None:
        """Request `count` devices that generate. The same number again retries devices that failed.

        Raises ScaleRefused.
        """
        problems = scale_problems(self._job, count)
        if problems:
            text = "; ".join(str(problem) for problem in problems)
            raise ScaleRefused(text, conflict=not is_elastic(self._job.spec))
        with self._lock:
            turn = self._latest.turn + 1
            request = ScaleRequest(count=count, turn=turn, time=self._clock())
            self._persist(request)
            self._latest = request

    def may_have(self, count: int) -> bool:
        """Return whether the job can run with so many rollout devices."""
        return not scale_problems(self._job, count)

    def publish(
        self,
        generating: Sequence[DevicePlace],
        *,
        hosts: Sequence[str],
        joining: int = 0,
        message: str = "",
    ) -> None:
        """Publish which devices are present. hosts: those with a device of the job. joining: number of
        devices that are starting."""
        self._status = _DeviceStatus(
            generating=tuple(generating),
            hosts=tuple(dict.fromkeys(hosts)),
            joining=joining,
            message=message,
        )

    def report(self) -> RolloutReport:
        """Return the requested and present devices as the status server reports them."""
        request, status = self._latest, self._status
        return RolloutReport(
            wanted=request.count,
            ready=len(status.generating),
            joining=status.joining,
            draining=list(reversed(status.generating[request.count :])),
            hosts=list(status.hosts),
            message=status.message,
        )
