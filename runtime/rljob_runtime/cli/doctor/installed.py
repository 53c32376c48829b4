"""The operator as its Deployment says: version, readiness, and the arguments that matter to a job. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from rljob_runtime.cli.doctor.cluster_facts import Manifest, name_of

VERSION_LABEL = "app.kubernetes.io/version"
IMAGE_VERSION = re.compile(r":v?(\d+\.\d+[^@:]*)(@.*)?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """One operator. version: "" where nothing says it. namespaces: that it looks after, () for all."""

    name: str
    version: str
    ready: int
    wanted: int
    namespaces: tuple[str, ...] = ()
    runtime_image: str = ""
    ascend_image: str = ""
    pull_secrets: tuple[str, ...] = ()
    device_plugin: bool = False

    def looks_after(self, namespace: str) -> bool:
        """Whether jobs of the namespace are its own."""
        return not self.namespaces or namespace in self.namespaces


def installed(deployment: Manifest) -> Installed:
    """Of an operator's Deployment, rljob's or KubeRay's."""
    metadata, spec = deployment["metadata"], deployment["spec"]
    container = spec["template"]["spec"]["containers"][0]
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    tag = IMAGE_VERSION.search(container.get("image", ""))
    label = metadata.get("labels", {}).get(VERSION_LABEL, "")
    return Installed(
        name=f"{metadata['namespace']}/{name_of(deployment)}",
        version=label or (tag[1] if tag else ""),
        ready=int(deployment.get("status", {}).get("readyReplicas") or 0),
        wanted=int(spec.get("replicas", 1)),
        namespaces=tuple(_values(words, "--namespace")),
        runtime_image=_last(words, "--runtime-image"),
        ascend_image=_last(words, "--ascend-image"),
        pull_secrets=tuple(_values(words, "--image-pull-secret")),
        device_plugin="--emulated-device-plugin" in words,
    )


def version_of(text: str) -> tuple[int, int] | None:
    """(major, minor) of v1.34.4+k3s1 and the like; None of anything else."""
    found = re.match(r"v?(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _values(words: Iterable[str], option: str) -> list[str]:
    start = f"{option}="
    return [word.removeprefix(start) for word in words if word.startswith(start)]


def _last(words: Iterable[str], option: str) -> str:
    return next(reversed(_values(words, option)), "")
