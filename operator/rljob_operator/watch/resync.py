"""List everything that is watched and correct the cache: at the start, then every few minutes.

Called by `main`. A watch can miss a deletion while it is broken, and kopf never lists again.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Never, Protocol

from rljob_operator.errors import NotFound, Temporary
from rljob_operator.kube.kube_answers import Manifest
from rljob_operator.watch.cache import JOB_LABEL, Cache, JobKey, reduced
from rljob_operator.watch.informers import LABELLED, WATCHED, JobQueue

logger = logging.getLogger(__name__)

RESYNC_SECONDS = 300.0
RETRY_SECONDS = 5.0


class Lister(Protocol):
    """The method of `Kube` for listing."""

    async def list(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str | None] | None = None,
        keep: Callable[[Manifest], Manifest] = dict,
    ) -> list[Manifest]:
        """Return all objects of a kind that have the labels; `keep` reduces each to what the cache stores."""
        ...


async def keep_in_step(
    kube: Lister,
    *,
    cache: Cache,
    queue: JobQueue,
    namespaces: Collection[str] = (),
    on_step: Callable[[], None] = lambda: None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Never:
    """Resync now and every RESYNC_SECONDS, or after RETRY_SECONDS if the API server cannot answer. on_step:
    called after each complete resync.

    Raises errors that a retry cannot fix: a missing role, or a resource that is not installed. kopf would not
    notice when either is added, so the process has to restart.
    """
    while True:
        pause = RESYNC_SECONDS
        try:
            await resync(kube, cache=cache, queue=queue, namespaces=namespaces)
            on_step()
        except Temporary as error:
            pause = max(RETRY_SECONDS, error.retry_after)
            logger.warning("not listed, again in %.0f s: %s", pause, error)
        except NotFound as error:
            raise NotFound(
                f"{error}: RLJob comes with rljob's chart, RayCluster with KubeRay 1.6 or newer, Workload "
                "with Kueue 0.15 or newer (else kueue.enabled of the chart is to be false)"
            ) from error
        await sleep(pause)


async def resync(
    kube: Lister,
    *,
    cache: Cache,
    queue: JobQueue,
    namespaces: Collection[str] = (),
    clock: Callable[[], float] = time.monotonic,
) -> set[JobKey]:
    """Bring the cache up to date and add all jobs to the queue; return the jobs that changed.

    namespaces: those that are watched, none for all. Raises what `Kube.list` raises; what was listed until
    then is kept.
    """
    changed_jobs: set[JobKey] = set()
    for kind in cache.kinds:
        group, version, _ = WATCHED[kind]
        api_version = f"{group}/{version}".lstrip("/")
        labels: dict[str, str | None] | None = {JOB_LABEL: None} if kind in LABELLED else None
        began = clock()
        manifests = [
            manifest
            for namespace in (namespaces or (None,))
            for manifest in await kube.list(
                api_version, kind, namespace, labels=labels, keep=partial(reduced, kind)
            )
        ]
        listed = set(namespaces) if namespaces else None
        changed_jobs |= cache.replace(kind, manifests, began=began, namespaces=listed)
    for job in sorted(changed_jobs.union(cache.jobs())):
        queue.add(job)
    return changed_jobs
