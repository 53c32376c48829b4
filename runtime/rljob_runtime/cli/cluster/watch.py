"""Follow one job: yield its manifest at every change until it has ended, across interrupted watches.

The API server ends each watch after a minute and drops old versions (410). Then the next watch continues, or
the job is read anew. An unreachable server is retried up to a limit.
"""

import time
from collections.abc import Callable, Iterator
from typing import Protocol

from rljob_runtime.cli.cluster.job_facts import Manifest, ending
from rljob_runtime.errors import ClusterError, NoAnswer, NotThere

PATIENCE_SECONDS = 120.0
"""How long a server that does not answer is retried."""
FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS = 1.0, 10.0
GONE = 410


class WatchSource(Protocol):
    """The subset of `Calls` that follows one job."""

    def job(self, name: str) -> Manifest:
        """Return the RLJob's manifest. Raises NotThere if it was deleted."""
        ...

    def watch(self, name: str, resource_version: str) -> Iterator[Manifest]:
        """Yield changes after this version, `{"type", "object"}`, until the server ends the watch."""
        ...


def follow(
    calls: WatchSource,
    job: Manifest,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Manifest]:
    """Yield the given job, then its manifest at each change, up to the one that has ended.

    Raises ClusterError once it is deleted, access is refused, or the server is away for PATIENCE_SECONDS.
    """
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    version: str | None = job["metadata"]["resourceVersion"]
    silent_since: float | None = None
    pause = FIRST_PAUSE_SECONDS
    yield job
    while ending(job) is None:
        try:
            reads_anew = version is None
            changes = calls.watch(name, version) if version else _read_anew(calls, name)
            version = None  # until a change carries one
            for change in changes:
                silent_since, pause = None, FIRST_PAUSE_SECONDS
                manifest = change.get("object", {})
                if change["type"] == "ERROR":
                    if manifest.get("code") != GONE:
                        raise ClusterError(
                            f"the watch of {name} was ended: {manifest.get('message')}"
                        )
                    version = None
                    break
                version = manifest["metadata"]["resourceVersion"]
                if change["type"] == "BOOKMARK":
                    continue
                if change["type"] == "DELETED" or manifest["metadata"]["uid"] != uid:
                    raise NotThere(f"{name} was deleted")
                if manifest != job:
                    job = manifest
                    yield job
                if ending(job) is not None:
                    return
            if not reads_anew and version is None:
                # Else a watch without changes that ends immediately would loop without a pause.
                sleep(FIRST_PAUSE_SECONDS)
        except NoAnswer:
            silent_since = clock() if silent_since is None else silent_since
            if clock() - silent_since >= PATIENCE_SECONDS:
                raise
            sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)


def _read_anew(calls: WatchSource, name: str) -> Iterator[Manifest]:
    try:
        yield {"type": "MODIFIED", "object": calls.job(name)}
    except NotThere:
        raise NotThere(f"{name} was deleted") from None
