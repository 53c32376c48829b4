"""API calls of the commands, on plain manifests; each has a deadline.

With `connect` and `exec` the only code that uses the Kubernetes client. Raises ClusterError with a message
that names the request and a remedy (`refusals`).
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from kubernetes.client import CoreV1Api, CustomObjectsApi
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError, ReadTimeoutError

from rljob_api.spec.rljob import GROUP, VERSION
from rljob_api.topology.pod_names import HEAD_CONTAINER, JOB_UID_LABEL
from rljob_runtime.cli.cluster.connect import Connection
from rljob_runtime.cli.cluster.refusals import ApiRequest, no_answer, refusal

Manifest = dict[str, Any]

CONNECT_SECONDS = 5.0
CALL_SECONDS = 30.0
WATCH_SECONDS = 60
"""The API server ends a watch after this time; a watch without data is abandoned a little later."""
JSON = "application/json"
METHODS = {"get": "GET", "list": "GET", "create": "POST", "delete": "DELETE"}
PLURAL = "rljobs"
JOBS = f"{PLURAL}.{GROUP}"


class Calls:
    """Calls to one namespace of one API server."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.namespace = connection.namespace
        self._jobs = CustomObjectsApi(connection.client)
        self.core = CoreV1Api(connection.client)

    def job(self, name: str) -> Manifest:
        """Return the RLJob. Raises NotThere."""
        with self.translate_errors("get", JOBS, name):
            answer: Manifest = self._jobs.get_namespaced_custom_object(
                GROUP,
                VERSION,
                self.namespace,
                PLURAL,
                name,
                _request_timeout=_timeouts(CALL_SECONDS),
            )
        return answer

    def jobs(self) -> Manifest:
        """Return the namespace's RLJobs as a list object."""
        with self.translate_errors("list", JOBS):
            answer: Manifest = self._jobs.list_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, _request_timeout=_timeouts(CALL_SECONDS)
            )
        return answer

    def pods(self, uid: str) -> list[Manifest]:
        """Return the pods of a job, by its uid."""
        with self.translate_errors("list", "pods"):
            answer = self.core.list_namespaced_pod(
                self.namespace,
                label_selector=f"{JOB_UID_LABEL}={uid}",
                _request_timeout=_timeouts(CALL_SECONDS),
                _preload_content=False,
            )
            return _items(answer.data)

    def events(self, uid: str) -> list[Manifest]:
        """Return the Kubernetes events about a job, in no order."""
        with self.translate_errors("list", "events"):
            answer = self.core.list_namespaced_event(
                self.namespace,
                field_selector=f"involvedObject.uid={uid}",
                _request_timeout=_timeouts(CALL_SECONDS),
                _preload_content=False,
            )
            return _items(answer.data)

    def watch(self, name: str, resource_version: str) -> Iterator[Manifest]:
        """Yield watch events about a job, `{"type", "object"}`, until the server ends the watch."""
        with self.translate_errors("watch", JOBS, name):
            answer = self._jobs.list_namespaced_custom_object(
                GROUP,
                VERSION,
                self.namespace,
                PLURAL,
                field_selector=f"metadata.name={name}",
                resource_version=resource_version,
                allow_watch_bookmarks=True,
                watch=True,
                timeout_seconds=WATCH_SECONDS,
                _request_timeout=_timeouts(WATCH_SECONDS + CALL_SECONDS / 2),
                _preload_content=False,
            )
            with contextlib.closing(answer):
                for line in answer:
                    if line.strip():
                        yield json.loads(line)

    def log(
        self, pod: str, *, quiet_seconds: float | None, tail: int | None, since_seconds: int | None
    ) -> Iterator[str]:
        """Yield lines of the head's log, each prefixed with its time.

        quiet_seconds: follow the log until no line arrives for this long; None reads the present lines.
        """
        options: dict[str, Any] = {"tail_lines": tail, "since_seconds": since_seconds}
        with self.translate_errors("get", "pods/log", pod):
            answer = self.core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=HEAD_CONTAINER,
                follow=quiet_seconds is not None,
                timestamps=True,
                _request_timeout=_timeouts(quiet_seconds or CALL_SECONDS),
                _preload_content=False,
                **{key: value for key, value in options.items() if value is not None},
            )
            with contextlib.closing(answer):
                try:
                    for line in answer:
                        yield line.decode(errors="replace").rstrip("\n")
                except ReadTimeoutError:
                    if quiet_seconds is None:
                        raise

    def request(
        self,
        verb: str,
        path: str,
        *,
        resource: str,
        name: str = "",
        body: Manifest | None = None,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
    ) -> Manifest:
        """Make any other call. verb: a role's get, list, create or delete. path: of the API, e.g. /version.
        resource, name: for errors. accept: media type of the JSON answer. Raises NotThere and other
        ClusterErrors."""
        client = self.connection.client
        namespace = self.namespace if f"/namespaces/{self.namespace}/" in path else ""
        request_arguments = client.param_serialize(
            METHODS[verb],
            f"{path}?{urlencode(query)}" if query else path,
            header_params={"Accept": accept, "Content-Type": JSON},
            body=body,
            auth_settings=["BearerToken"],
        )
        with self.translate_errors(verb, resource, name, namespace=namespace):
            answer = client.call_api(*request_arguments, _request_timeout=_timeouts(CALL_SECONDS))
            content = answer.read()
            if not 200 <= answer.status <= 299:
                raise ApiException(status=answer.status, body=content.decode(errors="replace"))
            manifest: Manifest = json.loads(content)
        return manifest

    @contextlib.contextmanager
    def translate_errors(
        self, verb: str, resource: str, name: str = "", *, namespace: str | None = None
    ) -> Iterator[None]:
        """Map errors of the client in the body to ours. namespace: default is the client's; "" for all."""
        request = ApiRequest(
            verb=verb,
            resource=resource,
            name=name,
            namespace=self.namespace if namespace is None else namespace,
            where=self.connection.where,
        )
        try:
            yield
        except ApiException as error:
            raise refusal(
                request, int(error.status or 0), error.body or error.reason or ""
            ) from error
        except (HTTPError, OSError, json.JSONDecodeError) as error:
            raise no_answer(request, error) from error


def _timeouts(seconds: float) -> tuple[float, float]:
    """Return (connect, read) timeouts. The read timeout applies between two chunks of the answer."""
    return (CONNECT_SECONDS, seconds)


def _items(body: bytes) -> list[Manifest]:
    items: list[Manifest] = json.loads(body).get("items") or []
    return items
