"""Receive changes from kopf's watch events, and put them into the cache and the queue.

`main` calls `register` and `configure` before it starts kopf. Only `on.event` is used and the handlers return
nothing, so kopf writes no annotation, no finalizer and no status into any object.
"""

from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import parse_qs

import aiohttp
import kopf

from rljob_api.spec.rljob import GROUP, VERSION
from rljob_operator.watch.cache import JOB_LABEL, Cache, JobKey, Kind
from rljob_operator.watch.kopf_storage import NothingCompared, NothingRemembered

# Resources that are watched, as kopf names them: group (none for core), version, plural.
WATCHED: dict[Kind, tuple[str, str, str]] = {
    "RLJob": (GROUP, VERSION, "rljobs"),
    "RayCluster": ("ray.io", "v1", "rayclusters"),
    "Pod": ("", "v1", "pods"),
    "Workload": ("kueue.x-k8s.io", "v1beta2", "workloads"),
}
# Kinds that are filtered by label, so the server does not send other clusters and pods.
LABELLED: tuple[Kind, ...] = ("RayCluster", "Pod", "Workload")

# The server ends each watch after this long, so that a working watch is reopened at least this often.
WATCH_SECONDS = 240  # an integer: kopf passes it on unchanged, and the API server refuses 240.0


class JobQueue(Protocol):
    """Receives the jobs that have changed."""

    def add(self, key: JobKey, *, new: bool = False) -> None:
        """Request a pass over the job. new: nothing was done for it yet, so it goes first."""
        ...


class WatchAges:
    """When each kind's watch was last active: an event, or the server's acceptance of the watch."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_active: dict[Kind, float] = {}

    def started(self, kinds: tuple[Kind, ...]) -> None:
        """Expect activity on the watches of these kinds from now on."""
        for kind in kinds:
            self.saw(kind)

    def saw(self, kind: Kind) -> None:
        """Record activity on the kind's watch."""
        self._last_active[kind] = self._clock()

    def oldest(self) -> tuple[str, float]:
        """Return the kind that has been silent longest, and its seconds; 0 s before `started`."""
        if not self._last_active:
            return "", 0.0
        kind, last_active = min(self._last_active.items(), key=lambda item: item[1])
        return kind, self._clock() - last_active


def register(
    registry: kopf.OperatorRegistry,
    *,
    cache: Cache,
    queue: JobQueue,
    ages: WatchAges,
    clock: Callable[[], float],
) -> None:
    """Register the handlers of the cache's kinds. clock: the same clock that `resync` uses."""
    for kind in cache.kinds:
        group, version, plural = WATCHED[kind]
        labels: dict[str, Any] | None = {JOB_LABEL: kopf.PRESENT} if kind in LABELLED else None
        observe = _observer(kind, cache=cache, queue=queue, ages=ages, clock=clock)
        watch = kopf.on.event(
            group, version, plural, id=f"observe-{plural}", labels=labels, registry=registry
        )
        watch(observe)


def configure(settings: kopf.OperatorSettings) -> None:
    """Set the settings of kopf that the informers rely on."""
    for kind in LABELLED:
        settings.watching.label_selectors[WATCHED[kind]] = JOB_LABEL
    settings.watching.server_timeout = WATCH_SECONDS
    settings.networking.request_timeout = 30.0
    settings.networking.enforce_retry_after = True
    # One task per object, all started after the first list, would block the loop for seconds.
    settings.queueing.worker_limit = 100
    settings.queueing.idle_timeout = 0.05
    settings.persistence.diffbase_storage = NothingCompared()
    settings.persistence.progress_storage = NothingRemembered()
    settings.posting.enabled = False
    settings.peering.standalone = True
    # Namespaces are watched by name, or all together, and the CRDs exist from the start. So kopf need not
    # list either, which no Role of a namespace could allow.
    settings.scanning.disabled = True


def watch_trace(ages: WatchAges) -> aiohttp.TraceConfig:
    """Return a trace for kopf's HTTP session that counts an accepted watch as activity.

    kopf does not expose bookmarks; in a cluster without changes only new watches show activity.
    """
    kinds = {plural: kind for kind, (_, _, plural) in WATCHED.items()}

    async def on_end(
        _session: object, _context: object, end: aiohttp.TraceRequestEndParams
    ) -> None:
        kind = kinds.get(end.url.path.rpartition("/")[2])
        if kind is not None and end.response.status == 200 and _is_watch(end.url.query_string):
            ages.saw(kind)

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(on_end)
    return trace


def watch_session(info: kopf.ConnectionInfo, ages: WatchAges) -> kopf.AiohttpSession:
    """Return the session for a login handler, so that kopf's requests are traced. kopf closes the session."""
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        proxy=info.proxy_url,
        trust_env=info.trust_env,
        trace_configs=[watch_trace(ages)],
    )
    return kopf.AiohttpSession(
        server=info.server,
        default_namespace=info.default_namespace,
        expiration=info.expiration,
        aiohttp_session=session,
    )


def _observer(
    kind: Kind, *, cache: Cache, queue: JobQueue, ages: WatchAges, clock: Callable[[], float]
) -> Callable[..., Any]:
    # Asynchronous, since kopf runs other handlers in threads.
    async def observe(event: dict[str, Any], **_: object) -> None:
        ages.saw(kind)
        if event["type"] == "DELETED":
            jobs = cache.remove(kind, event["object"], observed_at=clock())
        else:
            jobs = cache.put(kind, event["object"], observed_at=clock())
        new = kind == "RLJob" and event["type"] != "DELETED" and "status" not in event["object"]
        for job in sorted(jobs):
            queue.add(job, new=new)

    return observe


def _is_watch(query: str) -> bool:
    return parse_qs(query).get("watch") == ["true"]
