"""What the commands ask first: the job, what is shown beside it, a way to read its head's files."""

import contextlib
from collections.abc import Callable
from typing import Any

from rljob_runtime.cli.cluster.api_calls import Calls
from rljob_runtime.cli.cluster.connect import near
from rljob_runtime.cli.cluster.exec import read_remote_file
from rljob_runtime.cli.cluster.fetch import LIMIT_BYTES
from rljob_runtime.cli.cluster.job_facts import Manifest
from rljob_runtime.cli.cluster.job_page import Seen
from rljob_runtime.cli.cluster.logs import head_of
from rljob_runtime.errors import ClusterError, NotThere


def find_job(calls: Calls, name: str) -> Manifest:
    """The job. Raises ClusterError with names that are near, where there is none."""
    try:
        return calls.job(name)
    except NotThere:
        known: list[str] = []
        with contextlib.suppress(ClusterError):
            known = [str(job["metadata"]["name"]) for job in calls.jobs()["items"]]
        raise ClusterError(
            f"namespace {calls.namespace} has no RLJob {name!r}{near(name, known)} "
            f"({calls.connection.where})"
        ) from None


def look(calls: Calls, job: Manifest) -> Seen:
    """The job with its pods and events; what may not be read becomes a note."""
    found: dict[str, Any] = {"pods": [], "events": []}
    notes = []
    for kind, ask in (("pods", calls.pods), ("events", calls.events)):
        try:
            found[kind] = ask(job["metadata"]["uid"])
        except ClusterError as error:
            notes.append(f"no {kind}: {error}")
    return Seen(job=job, notes=notes, **found)


def reader(calls: Calls, job: Manifest) -> Callable[[str], bytes]:
    """How to read a file of the job's head, by its path. Raises ClusterError without a head."""
    head = head_of(job, calls.pods(job["metadata"]["uid"]))["metadata"]["name"]
    return lambda path: read_remote_file(calls, head, path, limit_bytes=LIMIT_BYTES)
