"""A job on a cluster as a watched run: its events are read in chunks through shells in its head.

A shell needs the rights of `rljob report NAME`, and not the job's token. Used by `rljob watch`.
"""

import re
import time
from collections.abc import Callable

from rljob_runtime.cli.cluster.api_calls import Calls
from rljob_runtime.cli.cluster.ask import find_job
from rljob_runtime.cli.cluster.exec import MISSING_CODE, read_remote_file, run_remotely
from rljob_runtime.cli.cluster.fetch import EVENTS, LIMIT_BYTES, SPEC
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
from rljob_runtime.report.watch.follow import PIECE_BYTES, Follower, News, Read, TailChunk
from rljob_runtime.report.watch.runs import RunActivity, RunStatus

PAUSE_SECONDS = 3.0
PATIENCE_SECONDS = 120.0
"""How long an API server that does not answer is retried."""
TAIL = (
    f'test -f "$1" || exit {MISSING_CODE}; stat -c "%d:%i %s" "$1"; '
    f'tail -c "+$(($2 + 1))" "$1" | head -c {PIECE_BYTES}'
)


class ClusterRun:
    """The run of a job. Raises ClusterError without the job, or if the API server is away for
    PATIENCE_SECONDS."""

    pause_seconds = PAUSE_SECONDS

    def __init__(
        self, calls: Calls, name: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.label = f"{name} in namespace {calls.namespace}"
        self._calls, self._name, self._clock = calls, name, clock
        self._follower = Follower(self.reader(EVENTS))
        self._last_answer_s = clock()
        self._job: Manifest = find_job(calls, name)
        self._head: Manifest | None = None
        self._silence = ""
        self._spec = ""

    def news(self) -> News:
        try:
            self._refresh()
            news = self._follower.news()
        except NoAnswer as error:
            if self._clock() - self._last_answer_s > PATIENCE_SECONDS:
                raise
            self._silence = str(error)
            return News(events=[])
        self._silence, self._last_answer_s = "", self._clock()
        return news

    def _refresh(self) -> None:
        uid = self._job["metadata"]["uid"]
        self._job = find_job(self._calls, self._name)
        if self._job["metadata"]["uid"] != uid:
            raise NotThere(f"{self._name} was deleted; another job has its name now")
        self._head = head_pod(self._job, self._calls.pods(uid))

    def status(self, activity: RunActivity, time_s: float) -> RunStatus:
        if ending(self._job) is not None and not self._silence:
            return self._ended(activity)
        if self._silence:
            return RunStatus(over=False, text=self._silence)
        if self._head is None:
            return RunStatus(over=False, text=f"waiting for the head's pod ({phase(self._job)})")
        if not has_started(self._head):
            pod = self._head["metadata"]["name"]
            return RunStatus(over=False, text=f"waiting for {pod}: {state(self._head)}")
        if activity.finished is not None:
            return RunStatus(over=False, text="the attempt has ended; waiting for what follows")
        if not activity.last:
            return RunStatus(over=False, text=f"waiting for the driver ({phase(self._job)})")
        return RunStatus(over=False)

    def _ended(self, activity: RunActivity) -> RunStatus:
        if activity.finished is not None:
            return RunStatus(over=True)
        end = ending(self._job)
        text = f"the job has ended ({end}); {run_location(self._job)}"
        return RunStatus(over=True, text=text, code=0 if end == "Succeeded" else 1)

    def spec(self) -> str:
        if not self._spec and self._head is not None:
            path = f"{run_folder(self._job)}/{SPEC}"
            pod = self._head["metadata"]["name"]
            try:
                content = read_remote_file(self._calls, pod, path, limit_bytes=LIMIT_BYTES)
                self._spec = content.decode(errors="replace")
            except ClusterError:  # the driver may not have written it yet; the page does without
                return ""
        return self._spec

    def report(self) -> str | None:
        return None

    def reader(self, name: str) -> Read:
        return lambda offset: self._read(name, offset)

    def _read(self, name: str, offset: int) -> TailChunk | None:
        if self._head is None or not has_started(self._head):
            return None
        pod, path = self._head["metadata"]["name"], f"{run_folder(self._job)}/{name}"
        command = ["sh", "-c", TAIL, "sh", path, str(offset)]
        try:
            code, output, stderr = run_remotely(self._calls, pod, command, label=path)
        except NotThere:  # the pod was just deleted
            return None
        if code == MISSING_CODE:
            return None
        if code != 0:
            raise NoAnswer(f"{path} of pod {pod} could not be read: {stderr}")
        facts, _, data = output.partition(b"\n")
        match = re.fullmatch(rb"([0-9]{1,20}:[0-9]{1,20}) ([0-9]{1,20})", facts)
        if match is None:
            raise ClusterError(f"{path} of pod {pod} could not be read: it is {facts[:40]!r}")
        identity, size = match.groups()
        return TailChunk(identity=f"{pod}:{identity.decode()}", size=int(size), data=data)
