"""`rljob logs`: the output of a job's driver, from its head pod or from the log file of an attempt."""

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
    run_location,
    state,
)
from rljob_runtime.errors import ClusterError, NoAnswer, NotThere

QUIET_SECONDS = 10.0
"""After this time without a line of a followed log, the job and its head are read again."""
PAUSE_SECONDS = 2.0
PATIENCE_SECONDS = 120.0
OVERLAP_SECONDS = 5
"""Read again when a broken log is resumed, as clocks differ. Lines that were shown are dropped."""


class LogSource(Protocol):
    """The subset of `Calls` that reads logs."""

    def job(self, name: str) -> Manifest:
        """Return the RLJob's manifest. Raises NotThere if it was deleted."""
        ...

    def pods(self, uid: str) -> Sequence[Manifest]:
        """Return the pods of the job with this uid."""
        ...

    def log(
        self, pod: str, *, quiet_seconds: float | None, tail: int | None, since_seconds: int | None
    ) -> Iterator[str]:
        """Yield log lines with their times. quiet_seconds: follow until none comes for so long; None: do not
        follow."""
        ...


def read_log(calls: LogSource, job: Manifest, *, tail: int | None) -> Iterator[str]:
    """Yield the lines of the head's log. Raises ClusterError without a started pod."""
    head = head_of(job, calls.pods(job["metadata"]["uid"]))
    if not has_started(head):
        raise ClusterError(
            f"{head['metadata']['name']} has not started: {state(head)}; use -f to wait"
        )
    lines = calls.log(head["metadata"]["name"], quiet_seconds=None, tail=tail, since_seconds=None)
    for line in lines:
        yield _split_timestamp(line)[1]


def follow_log(
    calls: LogSource,
    name: str,
    *,
    tail: int | None,
    report: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.time,
) -> Iterator[str]:
    """Yield lines as they arrive, over restarts of the job, until the job has ended.

    report: receives what is awaited. clock: unix seconds. Raises ClusterError once the job is deleted.
    """
    follower = _Follower(calls, name, clock)
    last_report, last_answer_s = "", clock()
    while True:
        try:
            job = calls.job(name)
            is_over = ending(job) is not None
            head = head_pod(job, calls.pods(job["metadata"]["uid"]))
            if head is not None and has_started(head):
                last_report = ""
                with contextlib.suppress(NotThere):  # the pod was just deleted
                    yield from follower.lines(head, tail=tail, follow=not is_over)
                tail = None
            elif not is_over and (waiting := _waiting_text(job, head)) != last_report:
                report(waiting)
                last_report = waiting
            last_answer_s = clock()
        except NoAnswer:
            if clock() - last_answer_s >= PATIENCE_SECONDS:
                raise
            is_over = False
        if is_over:
            return
        sleep(PAUSE_SECONDS)


class _Follower:
    """Stores which pod's log was shown, and up to which line."""

    def __init__(self, calls: LogSource, name: str, clock: Callable[[], float]) -> None:
        self._calls, self._name, self._clock = calls, name, clock
        self._pod = ""
        self._last: datetime | None = None

    def lines(self, head: Manifest, *, tail: int | None, follow: bool) -> Iterator[str]:
        """Yield lines of the head's log that were not shown, without their times."""
        pod = head["metadata"]["name"]
        if pod != self._pod:
            self._pod, self._last = pod, None
        since, last_shown = None, self._last
        if last_shown is not None:
            since, tail = (
                max(0, int(self._clock() - last_shown.timestamp())) + OVERLAP_SECONDS,
                None,
            )
        for line in self._calls.log(
            pod, quiet_seconds=QUIET_SECONDS if follow else None, tail=tail, since_seconds=since
        ):
            timestamp, text = _split_timestamp(line)
            if timestamp is not None:
                if last_shown is not None and timestamp <= last_shown:
                    continue
                self._last = timestamp
            yield text


def log_of_attempt(
    job: Manifest, attempt: int, *, tail: int | None, read: Callable[[str], bytes]
) -> list[str]:
    """Return the lines of an earlier attempt, from the run's folder. read: reads a file of the head by
    path."""
    text = read(f"{run_folder(job)}/{driver_log(attempt)}").decode(errors="replace")
    lines = text.splitlines()
    return lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]


def head_of(job: Manifest, pods: Sequence[Manifest]) -> Manifest:
    """Return the head's pod. Raises ClusterError that names where else to look."""
    head = head_pod(job, pods)
    if head is not None:
        return head
    name = job["metadata"]["name"]
    if job.get("status", {}).get("attempt") is None:
        raise ClusterError(f"{name} has not begun ({phase(job)}); rljob status {name} tells why")
    raise ClusterError(f"{name} has no head pod ({phase(job)}); {run_location(job)}")


def _split_timestamp(line: str) -> tuple[datetime | None, str]:
    """Split a line into time and text; without a time where the node reports a lost log."""
    timestamp, _, text = line.partition(" ")
    try:
        return datetime.fromisoformat(timestamp), text
    except ValueError:
        return None, line


def _waiting_text(job: Manifest, head: Manifest | None) -> str:
    if head is None:
        return f"waiting for the head's pod ({phase(job)})"
    return f"waiting for {head['metadata']['name']}: {state(head)}"
