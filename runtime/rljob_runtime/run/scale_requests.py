"""Between who asks for another number of rollout devices and the driver that brings it about.

The status server asks here, in a thread of its own; `elastic` reads what was asked and tells how far
it is. Numbers that the job cannot have are refused before the driver hears of them.
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
class Asked:
    """A number that was asked for. turn: of the question; 0 is the job's own number."""

    count: int
    turn: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What the driver said last. generating: in order, the last ones leave first."""

    generating: tuple[DevicePlace, ...] = ()
    hosts: tuple[str, ...] = ()
    joining: int = 0
    message: str = ""


class ScaleRequests:
    """One run's number of rollout devices: wanted and there."""

    def __init__(
        self,
        job: ResolvedJob,
        *,
        asked: Asked | None = None,
        keep: Callable[[Asked], None] = lambda _: None,
        clock: Callable[[], float] = unix_seconds,
    ) -> None:
        """asked: of a driver that died. keep: called with each question, before it is answered."""
        self._job, self._keep = job, keep
        self._clock = clock
        self._lock = threading.Lock()
        own = job.spec.roles.rollout
        self._asked = asked or Asked(count=own, turn=0, time=clock())
        self._told = _Told()

    @property
    def asked(self) -> Asked:
        """The latest question."""
        return self._asked

    def ask(self, count: int) -> None:
        """Ask for `count` devices that generate; the same number again tries again what failed.

        Raises ScaleRefused.
        """
        problems = scale_problems(self._job, count)
        if problems:
            text = "; ".join(str(problem) for problem in problems)
            raise ScaleRefused(text, conflict=not is_elastic(self._job.spec))
        with self._lock:
            turn = self._asked.turn + 1
            asked = Asked(count=count, turn=turn, time=self._clock())
            self._keep(asked)
            self._asked = asked

    def may_have(self, count: int) -> bool:
        """Whether the job can run with so many."""
        return not scale_problems(self._job, count)

    def tell(
        self,
        generating: Sequence[DevicePlace],
        *,
        hosts: Sequence[str],
        joining: int = 0,
        message: str = "",
    ) -> None:
        """What is there now. hosts: those with a device of the job. joining: devices on their way."""
        self._told = _Told(
            generating=tuple(generating),
            hosts=tuple(dict.fromkeys(hosts)),
            joining=joining,
            message=message,
        )

    def report(self) -> RolloutReport:
        """For whoever asked."""
        asked, told = self._asked, self._told
        return RolloutReport(
            wanted=asked.count,
            ready=len(told.generating),
            joining=told.joining,
            draining=list(reversed(told.generating[asked.count :])),
            hosts=list(told.hosts),
            message=told.message,
        )
