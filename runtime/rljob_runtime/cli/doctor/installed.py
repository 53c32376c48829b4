"""Read an operator's Deployment: version, readiness, and the arguments that matter to a job. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rljob_runtime.cli.doctor.cluster_facts import Manifest, name_of

VERSION_LABEL = "app.kubernetes.io/version"
IMAGE_VERSION = re.compile(r":v?(\d+\.\d+[^@:]*)(@.*)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledOperator:
    """One operator. version: "" where it is unknown. namespaces: those that it watches, () for all."""

    name: str
    version: str
    ready: int
    replicas: int
    namespaces: tuple[str, ...] = ()
    runtime_image: str = ""
    ascend_image: str = ""
    pull_secrets: tuple[str, ...] = ()
    device_plugin: bool = False

    def watches(self, namespace: str) -> bool:
        """Return whether the operator watches the namespace."""
        return not self.namespaces or namespace in self.namespaces


def operator_of_deployment(deployment: Manifest) -> InstalledOperator:
    """Return the operator of a Deployment, rljob's or KubeRay's."""
    metadata, spec = deployment["metadata"], deployment["spec"]
    container = spec["template"]["spec"]["containers"][0]
    arguments = [*(container.get("command") or []), *(container.get("args") or [])]
    tag = IMAGE_VERSION.search(container.get("image", ""))
    label = metadata.get("labels", {}).get(VERSION_LABEL, "")
    return InstalledOperator(
        name=f"{metadata['namespace']}/{name_of(deployment)}",
        version=label or (tag[1] if tag else ""),
        ready=int(deployment.get("status", {}).get("readyReplicas") or 0),
        replicas=int(spec.get("replicas", 1)),
        namespaces=tuple(_values(arguments, "--namespace")),
        runtime_image=_last(arguments, "--runtime-image"),
        ascend_image=_last(arguments, "--ascend-image"),
        pull_secrets=tuple(_values(arguments, "--image-pull-secret")),
        device_plugin="--emulated-device-plugin" in arguments,
    )


def version_of(text: str) -> tuple[int, int] | None:
    """Return (major, minor) of a version such as v1.34.4+k3s1; None for other text."""
    match = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def _values(arguments: Iterable[str], option: str) -> list[str]:
    start = f"{option}="
    return [argument.removeprefix(start) for argument in arguments if argument.startswith(start)]


def _last(arguments: Iterable[str], option: str) -> str:
    return next(reversed(_values(arguments, option)), "")
