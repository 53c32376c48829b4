"""The Kubernetes API, as far as the operator needs it: typed calls on plain manifests.

With `kube_resources` and `kube_transport`, this is the only file that uses lightkube. Called by `apply`,
`lease` and `resync`. Each call ends within 30 s, is timed into the metrics, and raises the errors of
`errors`. Contents of Secrets never appear in messages.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

import httpx2
import msgspec
from lightkube import ALL_NS, AsyncClient, ConfigError, KubeConfig, SingleConfig
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.models import User
from lightkube.types import CascadeType, PatchType

from rljob_operator.errors import Conflict, NotFound, OperatorError
from rljob_operator.kube.kube_answers import Manifest, error_of_answer, merge_patch, no_answer
from rljob_operator.kube.kube_resources import CLUSTER_RESOURCES, RESOURCES, STATUSES, Resource
from rljob_operator.kube.kube_transport import AiohttpTransport

FIELD_MANAGER = "rljob-operator"
TIMEOUT_SECONDS = 30.0
PAGE_SIZE = 500  # objects of one answer of a list: keeps a thousand jobs out of one JSON document
PAGE_SIZES = {"RLJob": 25}
"""Page sizes of kinds whose objects any user may make as large as etcd accepts, 1.5 MiB."""

T = TypeVar("T")

# KeyError is lightkube's on an error answer without a Content-Type.
FOREIGN_ERRORS = (
    httpx2.HTTPError,
    msgspec.MsgspecError,
    ConfigError,
    OSError,
    KeyError,
    ValueError,
)


class KubeMetrics(Protocol):
    """Receives a report of each call."""

    def kube_call(self, verb: str, code: str, seconds: float) -> None:
        """Count one call to the API server. code: 2xx, the HTTP status of an error, timeout or no_answer."""
        ...


class Kube:
    """Calls to one API server. Manifests are plain dictionaries with apiVersion and kind."""

    def __init__(
        self,
        *,
        metrics: KubeMetrics,
        config: SingleConfig | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """config: None finds the service account's, else $KUBECONFIG, else ~/.kube/config.

        transport: what carries the requests in place of a network.
        """
        config = config or KubeConfig.from_env().get()
        if transport is None and config is not None:
            tls = verify_cluster(config.cluster, config.user or User(), config.abs_file)
            transport = AiohttpTransport(tls)
        self._client = AsyncClient(
            config,
            timeout=httpx2.Timeout(timeout_seconds),
            field_manager=FIELD_MANAGER,
            transport=transport,
        )
        self._metrics = metrics
        self._timeout_seconds = timeout_seconds
        self._clock = clock

    async def close(self) -> None:
        """Close the connections to the API server."""
        await self._client.close()

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Manifest:
        """Return the object. Raises NotFound."""
        call = self._client.get(RESOURCES[api_version, kind], name, namespace=namespace)
        return _plain(await self._timed("get", f"{kind} {namespace}/{name}", call))

    async def find(self, api_version: str, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return the object, or None if it does not exist."""
        try:
            return await self.get(api_version, kind, namespace, name)
        except NotFound:
            return None

    async def get_of_cluster(self, api_version: str, kind: str, name: str) -> Manifest:
        """Return the object of a kind without namespaces. Raises NotFound."""
        call = self._client.get(CLUSTER_RESOURCES[api_version, kind], name)
        return _plain(await self._timed("get", f"{kind} {name}", call))

    async def list(
        self,
        api_version: str,
        kind: str,
        namespace: str | None = None,
        *,
        labels: Mapping[str, str | None] | None = None,
        keep: Callable[[Manifest], Manifest] = dict,
    ) -> list[Manifest]:
        """Return all objects of a kind. namespace: None means all. labels: value, or None for "has it". keep:
        reduces an object to what is worth its memory."""
        items = self._client.list(
            RESOURCES[api_version, kind],
            namespace=ALL_NS if namespace is None else namespace,
            chunk_size=min(PAGE_SIZE, PAGE_SIZES.get(kind, PAGE_SIZE)),
            labels=dict(labels or {}),
        )

        async def collect() -> list[Manifest]:  # an answer's items leave out what they are
            return [keep({"apiVersion": api_version, "kind": kind, **item}) async for item in items]

        return await self._timed("list", f"{kind} of {namespace or 'all namespaces'}", collect())

    async def apply(self, manifest: Manifest, *, uid: str | None = None) -> Manifest:
        """Create the object or set what the manifest contains, by server-side apply, taking fields over. uid:
        of the object that was observed. Raises Conflict if it is gone, Invalid if it is another one."""
        resource, namespace, name = _addressed(manifest)
        if uid is not None:
            manifest = {**manifest, "metadata": {**manifest["metadata"], "uid": uid}}
        call = self._client.patch(
            resource,
            name,
            manifest,
            namespace=namespace,
            patch_type=PatchType.APPLY,
            force=True,
        )
        return _plain(await self._timed("apply", _description(manifest), call))

    async def create(self, manifest: Manifest) -> Manifest:
        """Create the object. Raises Conflict if it exists already."""
        resource, _, _ = _addressed(manifest)
        call = self._client.create(resource(**manifest))
        return _plain(await self._timed("create", _description(manifest), call))

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace the object. Raises Conflict if its resourceVersion is not the manifest's."""
        resource, _, _ = _addressed(manifest)
        call = self._client.replace(resource(**manifest))
        return _plain(await self._timed("replace", _description(manifest), call))

    async def patch_status(
        self, manifest: Manifest, status: dict[str, Any], resource_version: str
    ) -> Manifest:
        """Make `status` the full status of an RLJob or Workload; send no request if it is already equal.

        manifest: as last observed; keys that its status has and `status` lacks are removed. Raises Conflict
        if the object is no longer at `resource_version`.
        """
        changes = merge_patch(manifest.get("status") or {}, status)
        if not changes:
            return manifest
        _, namespace, name = _addressed(manifest)
        call = self._client.patch(
            STATUSES[manifest["apiVersion"], manifest["kind"]],
            name,
            {"metadata": {"resourceVersion": resource_version}, "status": changes},
            namespace=namespace,
            patch_type=PatchType.MERGE,
        )
        return _plain(await self._timed("patch_status", _description(manifest), call))

    async def delete(
        self,
        api_version: str,
        kind: str,
        namespace: str,
        name: str,
        *,
        uid: str | None = None,
        grace_seconds: int | None = None,
    ) -> bool:
        """Delete the object, and its dependents after it; return False if it did not exist. uid: of the
        observed object, None for any. grace_seconds 0: by force. Raises Conflict if it is another one."""
        parameters = {
            "uid": uid,
            "gracePeriodSeconds": grace_seconds,
            "propagationPolicy": CascadeType.BACKGROUND.value,
        }
        # lightkube's own `delete` has no preconditions
        call = self._client._client.request(
            "delete",
            res=RESOURCES[api_version, kind],
            name=name,
            namespace=namespace,
            params=parameters,
        )
        try:
            await self._timed("delete", f"{kind} {namespace}/{name}", call)
        except NotFound:
            return False
        return True

    async def create_event(self, event: Manifest) -> None:
        """Post an event of `events.event_about`; one that was posted before is counted up."""
        try:
            await self.create(event)
            return
        except Conflict:
            resource, namespace, name = _addressed(event)
            before = await self.get("v1", "Event", namespace, name)
        again = {"count": before.get("count", 1) + 1, "lastTimestamp": event["lastTimestamp"]}
        call = self._client.patch(
            resource, name, again, namespace=namespace, patch_type=PatchType.MERGE
        )
        await self._timed("patch", _description(event), call)

    async def _timed(self, verb: str, request: str, call: Awaitable[T]) -> T:
        """Await the call, bounded and timed; its errors are translated.

        A foreign error is not kept as the cause: it contains the request, and so a Secret's contents.
        """
        began = self._clock()
        code = "2xx"
        try:
            async with asyncio.timeout(self._timeout_seconds):
                return await call
        except FOREIGN_ERRORS as error:
            code, translated = _translated(error, f"{verb} {request}")
        finally:
            self._metrics.kube_call(verb, code, self._clock() - began)
        raise translated


def _translated(error: Exception, request: str) -> tuple[str, OperatorError]:
    """Return the code for the metrics, and the operator's error."""
    answer = _answer_within(error)
    if answer is not None:
        retry_after = answer.headers.get("Retry-After", "")
        return str(answer.status_code), error_of_answer(
            answer.status_code,
            request,
            body="" if " Secret " in f" {request}" else answer.text,
            retry_after=retry_after,
        )
    timed_out = isinstance(error, TimeoutError | httpx2.TimeoutException)
    code = "timeout" if timed_out else "no_answer"
    return code, no_answer(request, "timed out" if timed_out else type(error).__name__)


def _answer_within(error: BaseException | None) -> httpx2.Response | None:
    while error is not None:
        if isinstance(error, httpx2.HTTPStatusError):
            return error.response
        error = error.__cause__ or error.__context__
    return None


def _addressed(manifest: Manifest) -> tuple[Resource, str, str]:
    metadata = manifest["metadata"]
    resource = RESOURCES[manifest["apiVersion"], manifest["kind"]]
    return resource, metadata["namespace"], metadata["name"]


def _description(manifest: Manifest) -> str:
    return f"{manifest['kind']} {manifest['metadata']['namespace']}/{manifest['metadata']['name']}"


def _plain(answer: Any) -> Manifest:
    return dict(answer)
