"""`rljob logs`: what a job's driver prints, from its head pod or from the file that an attempt left."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Protocol

from rljob_api.topology.pod_names import driver_log
from rljob_runtime.cli.cluster.job_facts import (
    Manifest,
    ending,
    has_started,
    head_pod,
    phase,
    run_folder,
    state,
    where_it_lies,
)
from rljob_runtime.errors import ClusterError, NoAnswer, NotThere

QUIET_SECONDS = 10.0
"""A followed log that is silent for so long: is there still somebody who could say something?"""
PAUSE_SECONDS = 2.0
PATIENCE_SECONDS = 120.0
OVERLAP_SECONDS = 5
"""Asked for again when a broken log is taken up: clocks differ. Lines that were shown are dropped."""


class Source(Protocol):
    """`Calls`, as far as logs are read."""

    def job(self, name: str) -> Manifest: ...
    def pods(self, uid: str) -> Sequence[Manifest]: ...
    def log(
        self, pod: str, *, quiet_seconds: float | None, tail: int | None, since_seconds: int | None
    ) -> Iterator[str]: ...


def read_log(calls: Source, job: Manifest, *, tail: int | None) -> Iterator[str]:
    """The lines that the head's pod holds. Raises ClusterError without a pod that has begun."""
    head = head_of(job, calls.pods(job["metadata"]["uid"]))
    if not has_started(head):
        raise ClusterError(
            f"{head['metadata']['name']} has not started: {state(head)}; use -f to wait"
        )
    lines = calls.log(head["metadata"]["name"], quiet_seconds=None, tail=tail, since_seconds=None)
    for line in lines:
        yield _timed(line)[1]


def follow_log(
    calls: Source,
    name: str,
    *,
    tail: int | None,
    tell: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> Iterator[str]:
    """Lines as they come, over restarts of the job, until the job has ended.

    tell: takes what is waited for. clock: unix seconds. Raises ClusterError once the job is deleted.
    """
    follower = _Follower(calls, name, clock)
    told, heard = "", clock()
    while True:
        try:
            job = calls.job(name)
            over = ending(job) is not None
            head = head_pod(job, calls.pods(job["metadata"]["uid"]))
            if head is not None and has_started(head):
                told = ""
                with contextlib.suppress(NotThere):  # the pod went just now
                    yield from follower.lines(head, tail=tail, follow=not over)
                tail = None
            elif not over and (waiting := _waiting(job, head)) != told:
                tell(waiting)
                told = waiting
            heard = clock()
        except NoAnswer:
            if clock() - heard >= PATIENCE_SECONDS:
                raise
            over = False
        if over:
            return
        sleep(PAUSE_SECONDS)


class _Follower:
    """Remembers which pod's log was shown, and how far."""

    def __init__(self, calls: Source, name: str, clock: Callable[[], float]) -> None:
        self._calls, self._name, self._clock = calls, name, clock
        self._pod = ""
        self._last: datetime | None = None

    def lines(self, head: Manifest, *, tail: int | None, follow: bool) -> Iterator[str]:
        """Lines of the head's log that were not shown, without their times."""
        pod = head["metadata"]["name"]
        if pod != self._pod:
            self._pod, self._last = pod, None
        since, shown = None, self._last
        if shown is not None:
            since, tail = max(0, int(self._clock() - shown.timestamp())) + OVERLAP_SECONDS, None
        for line in self._calls.log(
            pod, quiet_seconds=QUIET_SECONDS if follow else None, tail=tail, since_seconds=since
        ):
            when, text = _timed(line)
            if when is not None:
                if shown is not None and when <= shown:
                    continue
                self._last = when
            yield text


def log_of_attempt(
    job: Manifest, attempt: int, *, tail: int | None, read: Callable[[str], bytes]
) -> list[str]:
    """The lines of an earlier attempt, from the run's folder. read: a file of the head, by path."""
    text = read(f"{run_folder(job)}/{driver_log(attempt)}").decode(errors="replace")
    lines = text.splitlines()
    return lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]


def head_of(job: Manifest, pods: Sequence[Manifest]) -> Manifest:
    """The head's pod. Raises ClusterError with where else to look."""
    head = head_pod(job, pods)
    if head is not None:
        return head
    name = job["metadata"]["name"]
    if job.get("status", {}).get("attempt") is None:
        raise ClusterError(f"{name} has not begun ({phase(job)}); rljob status {name} tells why")
    raise ClusterError(f"{name} has no head pod ({phase(job)}); {where_it_lies(job)}")


def _timed(line: str) -> tuple[datetime | None, str]:
    """A line's time and text; no time where the node speaks itself, of a log that it lost."""
    when, _, text = line.partition(" ")
    try:
        return datetime.fromisoformat(when), text
    except ValueError:
        return None, line


def _waiting(job: Manifest, head: Manifest | None) -> str:
    if head is None:
        return f"waiting for the head's pod ({phase(job)})"
    return f"waiting for {head['metadata']['name']}: {state(head)}"
