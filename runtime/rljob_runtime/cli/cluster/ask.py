"""First queries of the commands: the job, its pods and events, and a reader of its head's files."""

import contextlib
from collections.abc import Callable
from typing import Any

from rljob_runtime.cli.cluster.api_calls import Calls
from rljob_runtime.cli.cluster.connect import suggestions
from rljob_runtime.cli.cluster.exec import read_remote_file
from rljob_runtime.cli.cluster.fetch import LIMIT_BYTES
from rljob_runtime.cli.cluster.job_facts import Manifest
from rljob_runtime.cli.cluster.job_page import JobSnapshot
from rljob_runtime.cli.cluster.logs import head_of
from rljob_runtime.errors import ClusterError, NotThere


def find_job(calls: Calls, name: str) -> Manifest:
    """Return the job. Raises ClusterError with similar names where it does not exist."""
    try:
        return calls.job(name)
    except NotThere:
        known: list[str] = []
        with contextlib.suppress(ClusterError):
            known = [str(job["metadata"]["name"]) for job in calls.jobs()["items"]]
        raise ClusterError(
            f"namespace {calls.namespace} has no RLJob {name!r}{suggestions(name, known)} "
            f"({calls.connection.where})"
        ) from None


def take_snapshot(calls: Calls, job: Manifest) -> JobSnapshot:
    """Return the job with its pods and events; a list that cannot be read becomes a note."""
    objects: dict[str, Any] = {"pods": [], "events": []}
    notes = []
    for kind, list_objects in (("pods", calls.pods), ("events", calls.events)):
        try:
            objects[kind] = list_objects(job["metadata"]["uid"])
        except ClusterError as error:
            notes.append(f"no {kind}: {error}")
    return JobSnapshot(job=job, notes=notes, **objects)


def head_file_reader(calls: Calls, job: Manifest) -> Callable[[str], bytes]:
    """Return a function that reads a file of the job's head by its path. Raises ClusterError without a
    head."""
    head = head_of(job, calls.pods(job["metadata"]["uid"]))["metadata"]["name"]
    return lambda path: read_remote_file(calls, head, path, limit_bytes=LIMIT_BYTES)
