"""Lists everything that is watched and corrects the cache: at the start, then every few minutes.

Called by `main`. A watch can lose a deletion while it is broken, and kopf never lists again on its own.
"""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from rljob_operator.cache import JOB_LABEL, KINDS, Cache, JobKey
from rljob_operator.informers import LABELLED, WATCHED, Queue
from rljob_operator.kube_answers import Manifest


class Lister(Protocol):
    """`Kube`, as far as listing goes."""

    async def list(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str | None] | None = None,
    ) -> list[Manifest]: ...


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
    for kind in KINDS:
        group, version, _ = WATCHED[kind]
        api_version = f"{group}/{version}".lstrip("/")
        labels: dict[str, str | None] | None = {JOB_LABEL: None} if kind in LABELLED else None
        began = clock()
        found = [
            manifest
            for namespace in (namespaces or (None,))
            for manifest in await kube.list(api_version, kind, namespace, labels=labels)
        ]
        listed = set(namespaces) if namespaces else None
        news |= cache.replace(kind, found, began=began, namespaces=listed)
    for job in sorted(news.union(cache.jobs())):
        queue.add(job)
    return news
