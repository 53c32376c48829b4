"""The cluster as the end-to-end tests see it: apply, watch until something holds, look into pods.

Every wait is a watch with a deadline; when it passes, the error shows what was there.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import yaml
from kubernetes import client, config, dynamic, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import stream

Manifest = dict[str, Any]
RLJOB = ("rljob.io/v1alpha1", "RLJob")
REQUEST_SECONDS = 30
EXEC_SECONDS = 60


@dataclass(slots=True)
class Cluster:
    """One namespace of the cluster of KUBECONFIG."""

    namespace: str
    api: dynamic.DynamicClient = field(repr=False)

    @classmethod
    def connect(cls, namespace: str) -> "Cluster":
        """The cluster of KUBECONFIG's present context."""
        return cls(namespace, dynamic.DynamicClient(config.new_client_from_config()))

    def within(self, namespace: str) -> "Cluster":
        """The same cluster, another namespace."""
        return Cluster(namespace, self.api)

    def resource(self, kind: str, api_version: str = "v1") -> Any:
        return self.api.resources.get(api_version=api_version, kind=kind)

    def apply(self, manifest: Manifest, **options: Any) -> Manifest:
        """Server-side apply, with the strict validation that kubectl asks for."""
        resource = self.resource(manifest["kind"], manifest["apiVersion"])
        namespace = manifest["metadata"].get("namespace", self.namespace)
        applied = self.api.server_side_apply(
            resource,
            body=manifest,
            namespace=namespace if resource.namespaced else None,
            field_manager="e2e",
            force_conflicts=True,
            **{"field_validation": "Strict"} | options,
        )
        return dict(applied.to_dict())

    def patch(self, name: str, spec: Manifest) -> Manifest:
        """Change fields of an RLJob's spec."""
        changed = self.resource(RLJOB[1], RLJOB[0]).patch(
            name=name,
            namespace=self.namespace,
            body={"spec": spec},
            content_type="application/merge-patch+json",
        )
        return dict(changed.to_dict())

    def objects(self, kind: str, api_version: str = "v1", selector: str = "") -> list[Manifest]:
        found = self.resource(kind, api_version).get(
            namespace=self.namespace, label_selector=selector
        )
        return [item.to_dict() for item in found.items]

    def job(self, name: str) -> Manifest:
        found = self.resource(RLJOB[1], RLJOB[0]).get(name=name, namespace=self.namespace)
        return dict(found.to_dict())

    def delete(self, kind: str, name: str, api_version: str = "v1", **options: Any) -> None:
        with suppress(dynamic.exceptions.NotFoundError):
            self.resource(kind, api_version).delete(
                name=name, namespace=self.namespace, body=options or None
            )

    def delete_job(self, name: str) -> None:
        self.delete(RLJOB[1], name, RLJOB[0])

    def delete_namespace(self) -> None:
        """The namespace with all that is in it, and the volumes of its claims."""
        volumes = [
            ("PersistentVolume", volume["metadata"]["name"])
            for volume in self.objects("PersistentVolume")
            if (volume["spec"].get("claimRef") or {}).get("namespace") == self.namespace
        ]
        for kind, name in [("Namespace", self.namespace), *volumes]:
            with suppress(dynamic.exceptions.NotFoundError):
                self.resource(kind).delete(name=name)

    def pods(self, job: str, role: str = "") -> list[Manifest]:
        """Pods of a job, of one role where it is given."""
        selector = f"rljob.io/job={job}" + (f",rljob.io/role={role}" if role else "")
        return self.objects("Pod", selector=selector)

    def head(self, job: str) -> str:
        """Name of the job's head pod that is not being deleted."""
        (name,) = [
            pod["metadata"]["name"]
            for pod in self.pods(job, "head")
            if "deletionTimestamp" not in pod["metadata"]
        ]
        return str(name)

    def kill_pod(self, name: str) -> None:
        """A pod is gone at once, as with `kubectl delete --force`."""
        self.delete("Pod", name, gracePeriodSeconds=0)

    def run(self, pod: str, *command: str) -> str:
        """Output of a command in a pod; its errors too."""
        core = client.CoreV1Api(self.api.client)
        return str(
            stream(
                core.connect_get_namespaced_pod_exec,
                pod,
                self.namespace,
                command=list(command),
                stdout=True,
                stderr=True,
                _request_timeout=EXEC_SECONDS,
            )
        )

    def log(self, pod: str, lines: int = 100) -> str:
        core = client.CoreV1Api(self.api.client)
        return str(
            core.read_namespaced_pod_log(
                pod, self.namespace, tail_lines=lines, _request_timeout=REQUEST_SECONDS
            )
        )

    def wait_for_job(
        self, name: str, what: str, holds: Callable[[Manifest], bool], *, seconds: float
    ) -> Manifest:
        """The RLJob once `holds` is true of it."""
        found: Manifest = self.wait(
            *RLJOB, what, lambda jobs: holds(jobs[name]) and jobs[name], seconds=seconds, of=name
        )
        return found

    def wait(
        self,
        api_version: str,
        kind: str,
        what: str,
        holds: Callable[[dict[str, Manifest]], Any],
        *,
        seconds: float,
        of: str = "",
    ) -> Any:
        """What `holds` gives of the objects by name, once that is true; watches meanwhile."""
        deadline = time.monotonic() + seconds
        for objects in self._changes(kind, api_version, deadline):
            with suppress(KeyError):
                if answer := holds(objects):
                    return answer
        raise AssertionError(f"{what}: not within {seconds:.0f} s\n{self.dump(of)}")

    def _changes(
        self, kind: str, api_version: str, deadline: float
    ) -> Iterator[dict[str, Manifest]]:
        """All objects of a kind after each change."""
        resource = self.resource(kind, api_version)
        while (left := deadline - time.monotonic()) > 0:
            listed = resource.get(namespace=self.namespace)
            objects = {item.metadata.name: item.to_dict() for item in listed.items}
            yield objects
            try:
                for event in resource.watch(
                    namespace=self.namespace,
                    resource_version=listed.metadata.resourceVersion,
                    timeout=max(1, int(left)),
                    watcher=watch.Watch(),
                ):
                    found = event["raw_object"]
                    name = found["metadata"]["name"]
                    if event["type"] == "DELETED":
                        objects.pop(name, None)
                    else:
                        objects[name] = found
                    yield objects
                    if time.monotonic() > deadline:
                        return
            except (ApiException, dynamic.exceptions.DynamicApiError):
                time.sleep(1)  # the watch was too old: list again

    def dump(self, job: str = "") -> str:
        """What is there: jobs, pods, events, the last lines of head and operator."""
        parts = [f"namespace {self.namespace}"]
        for kind, version in (RLJOB[::-1], ("RayCluster", "ray.io/v1")):
            parts += [yaml.safe_dump(o, sort_keys=False) for o in self.objects(kind, version)]
        for pod in self.objects("Pod"):
            status = pod["status"]
            node, phase = pod["spec"].get("nodeName"), status.get("phase")
            containers = json.dumps(status.get("containerStatuses", []))[:800]
            parts.append(f"pod {pod['metadata']['name']} node={node} phase={phase} {containers}")
        events = sorted(self.objects("Event"), key=lambda e: e["metadata"]["creationTimestamp"])
        parts += [
            f"event {e['involvedObject']['name']} {e['reason']}: {e.get('message', '')[:200]}"
            for e in events[-40:]
        ]
        with suppress(Exception):
            parts.append(f"head's log:\n{self.log(self.head(job), 60)}")
        with suppress(Exception):
            system = self.within("rljob-system")
            for pod in system.objects("Pod", selector="app.kubernetes.io/component=operator"):
                name = pod["metadata"]["name"]
                parts.append(f"log of {name}:\n{system.log(name, 60)}")
        return "\n".join(parts)
