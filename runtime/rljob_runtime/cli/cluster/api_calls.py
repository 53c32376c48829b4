"""The calls that the commands make, on plain manifests; each ends within its deadline.

With `connect` and `exec` the only code that knows the Kubernetes client. Raises ClusterError in words
that name what was asked for and what to do about a refusal (`refusals`).
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
from rljob_runtime.cli.cluster.refusals import Asked, no_answer, refusal

Manifest = dict[str, Any]

CONNECT_SECONDS = 5.0
CALL_SECONDS = 30.0
WATCH_SECONDS = 60
"""The API server ends a watch after so long; a silent one is given up a little later."""
JSON = "application/json"
METHODS = {"get": "GET", "list": "GET", "create": "POST", "delete": "DELETE"}
PLURAL = "rljobs"
JOBS = f"{PLURAL}.{GROUP}"


class Calls:
    """One namespace of one API server."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.namespace = connection.namespace
        self._jobs = CustomObjectsApi(connection.client)
        self.core = CoreV1Api(connection.client)

    def job(self, name: str) -> Manifest:
        """The RLJob. Raises NotThere."""
        with self.asking("get", JOBS, name):
            answer: Manifest = self._jobs.get_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, name, _request_timeout=_within(CALL_SECONDS)
            )
        return answer

    def jobs(self) -> Manifest:
        """The namespace's RLJobs, as a list object."""
        with self.asking("list", JOBS):
            answer: Manifest = self._jobs.list_namespaced_custom_object(
                GROUP, VERSION, self.namespace, PLURAL, _request_timeout=_within(CALL_SECONDS)
            )
        return answer

    def pods(self, uid: str) -> list[Manifest]:
        """The pods of a job."""
        with self.asking("list", "pods"):
            answer = self.core.list_namespaced_pod(
                self.namespace,
                label_selector=f"{JOB_UID_LABEL}={uid}",
                _request_timeout=_within(CALL_SECONDS),
                _preload_content=False,
            )
            return _items(answer.data)

    def events(self, uid: str) -> list[Manifest]:
        """The Kubernetes events about a job, in no order."""
        with self.asking("list", "events"):
            answer = self.core.list_namespaced_event(
                self.namespace,
                field_selector=f"involvedObject.uid={uid}",
                _request_timeout=_within(CALL_SECONDS),
                _preload_content=False,
            )
            return _items(answer.data)

    def watch(self, name: str, resource_version: str) -> Iterator[Manifest]:
        """Watch events about a job, `{"type", "object"}`, until the server ends the watch."""
        with self.asking("watch", JOBS, name):
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
                _request_timeout=_within(WATCH_SECONDS + CALL_SECONDS / 2),
                _preload_content=False,
            )
            with contextlib.closing(answer):
                for line in answer:
                    if line.strip():
                        yield json.loads(line)

    def log(
        self, pod: str, *, quiet_seconds: float | None, tail: int | None, since_seconds: int | None
    ) -> Iterator[str]:
        """Lines of the head's log, each with its time in front.

        quiet_seconds: follow the log until it is silent for so long; None ends with what there is.
        """
        options: dict[str, Any] = {"tail_lines": tail, "since_seconds": since_seconds}
        with self.asking("get", "pods/log", pod):
            answer = self.core.read_namespaced_pod_log(
                pod,
                self.namespace,
                container=HEAD_CONTAINER,
                follow=quiet_seconds is not None,
                timestamps=True,
                _request_timeout=_within(quiet_seconds or CALL_SECONDS),
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
        """Any other call. verb: a role's get, list, create or delete. path: of the API, e.g. /version.
        resource, name: for errors. accept: form of the answer, in JSON. Raises NotThere and other
        ClusterErrors."""
        client = self.connection.client
        namespace = self.namespace if f"/namespaces/{self.namespace}/" in path else ""
        given = client.param_serialize(
            METHODS[verb],
            f"{path}?{urlencode(query)}" if query else path,
            header_params={"Accept": accept, "Content-Type": JSON},
            body=body,
            auth_settings=["BearerToken"],
        )
        with self.asking(verb, resource, name, namespace=namespace):
            answer = client.call_api(*given, _request_timeout=_within(CALL_SECONDS))
            content = answer.read()
            if not 200 <= answer.status <= 299:
                raise ApiException(status=answer.status, body=content.decode(errors="replace"))
            found: Manifest = json.loads(content)
        return found

    @contextlib.contextmanager
    def asking(
        self, verb: str, resource: str, name: str = "", *, namespace: str | None = None
    ) -> Iterator[None]:
        """Turn the client's errors inside into ours. namespace: default, the own; "" for all."""
        asked = Asked(
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
                asked, int(error.status or 0), error.body or error.reason or ""
            ) from error
        except (HTTPError, OSError, json.JSONDecodeError) as error:
            raise no_answer(asked, error) from error


def _within(seconds: float) -> tuple[float, float]:
    """(connect, read) timeouts. Reading is bounded between two pieces of the answer."""
    return (CONNECT_SECONDS, seconds)


def _items(body: bytes) -> list[Manifest]:
    items: list[Manifest] = json.loads(body).get("items") or []
    return items
