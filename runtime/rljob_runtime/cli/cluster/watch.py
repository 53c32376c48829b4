"""Follow one job: its manifest at every change until it has ended, over watches that break off.

The API server ends each watch after a minute and forgets old versions (410); then the next watch goes
on, or the job is read anew. A server that is away is waited for, up to a limit.
"""

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from rljob_runtime.cli.cluster.job_facts import Manifest, ending
from rljob_runtime.errors import ClusterError, NoAnswer, NotThere

PATIENCE_SECONDS = 120.0
"""How long a server that does not answer is asked again."""
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 1.0, 10.0
GONE = 410


class Watched(Protocol):
    """`Calls`, as far as one job is followed."""

    def job(self, name: str) -> Manifest: ...
    def watch(self, name: str, resource_version: str) -> Iterator[Manifest]: ...


def follow(
    calls: Watched,
    job: Manifest,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Manifest]:
    """The job as given, then at each change; the last one has ended.

    Raises ClusterError once it is deleted, refused, or not to be seen for PATIENCE_SECONDS.
    """
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    version: str | None = job["metadata"]["resourceVersion"]
    silent_since: float | None = None
    pause = FIRST_PAUSE_SECONDS
    yield job
    while ending(job) is None:
        try:
            reading = version is None
            changes = calls.watch(name, version) if version else _read_anew(calls, name)
            version = None  # until a change tells of one
            for change in changes:
                silent_since, pause = None, FIRST_PAUSE_SECONDS
                seen = change.get("object", {})
                if change["type"] == "ERROR":
                    if seen.get("code") != GONE:
                        raise ClusterError(f"the watch of {name} was ended: {seen.get('message')}")
                    version = None
                    break
                version = seen["metadata"]["resourceVersion"]
                if change["type"] == "BOOKMARK":
                    continue
                if change["type"] == "DELETED" or seen["metadata"]["uid"] != uid:
                    raise NotThere(f"{name} was deleted")
                if seen != job:
                    job = seen
                    yield job
                if ending(job) is not None:
                    return
            if not reading and version is None:
                sleep(FIRST_PAUSE_SECONDS)  # a watch that brought nothing may end at once, for ever
        except NoAnswer:
            silent_since = clock() if silent_since is None else silent_since
            if clock() - silent_since >= PATIENCE_SECONDS:
                raise
            sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)


def _read_anew(calls: Watched, name: str) -> Iterator[Manifest]:
    try:
        yield {"type": "MODIFIED", "object": calls.job(name)}
    except NotThere:
        raise NotThere(f"{name} was deleted") from None
