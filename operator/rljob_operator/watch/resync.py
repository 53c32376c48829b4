"""Lists everything that is watched and corrects the cache: at the start, then every few minutes.

Called by `main`. A watch can lose a deletion while it is broken, and kopf never lists again on its own.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Never, Protocol

from rljob_operator.errors import NotFound, Temporary
from rljob_operator.kube.kube_answers import Manifest
from rljob_operator.watch.cache import JOB_LABEL, Cache, JobKey, kept
from rljob_operator.watch.informers import LABELLED, WATCHED, Queue

logger = logging.getLogger(__name__)

RESYNC_SECONDS = 300.0
RETRY_SECONDS = 5.0


class Lister(Protocol):
    """`Kube`, as far as listing goes."""

    async def list(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str | None] | None = None,
        keep: Callable[[Manifest], Manifest] = dict,
    ) -> list[Manifest]: ...


async def keep_in_step(
    kube: Lister,
    *,
    cache: Cache,
    queue: Queue,
    namespaces: Collection[str] = (),
    on_step: Callable[[], None] = lambda: None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Never:
    """Resync now and every RESYNC_SECONDS; after RETRY_SECONDS where the API server cannot answer. on_step:
    called after each that was whole.

    Raises what trying again cannot mend: a role that is missing, or a resource that is not installed.
    kopf would not notice either when that comes, so the process is to end and begin anew.
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
    queue: Queue,
    namespaces: Collection[str] = (),
    clock: Callable[[], float] = time.monotonic,
) -> set[JobKey]:
    """Bring the cache up to date and add all jobs to the queue; the jobs that there was news for.

    namespaces: those that are watched, none for all. Raises what `Kube.list` raises; what was listed
    until then is kept.
    """
    news: set[JobKey] = set()
    for kind in cache.kinds:
        group, version, _ = WATCHED[kind]
        api_version = f"{group}/{version}".lstrip("/")
        labels: dict[str, str | None] | None = {JOB_LABEL: None} if kind in LABELLED else None
        began = clock()
        found = [
            manifest
            for namespace in (namespaces or (None,))
            for manifest in await kube.list(
                api_version, kind, namespace, labels=labels, keep=partial(kept, kind)
            )
        ]
        listed = set(namespaces) if namespaces else None
        news |= cache.replace(kind, found, began=began, namespaces=listed)
    for job in sorted(news.union(cache.jobs())):
        queue.add(job)
    return news
