"""Where the chart is, and how to find things in what it renders."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "rljob"
KUBERNETES = "1.34"
EVERYTHING = f"--values={ROOT}/tests/operator/chart/everything.yaml"
Manifest = dict[str, Any]


def only(manifests: Sequence[Manifest], kind: str, name: str | None = None) -> Manifest:
    """The one manifest of a kind, or of a kind and name."""
    (found,) = [m for m in manifests if m["kind"] == kind and name in (None, m["metadata"]["name"])]
    return found


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def pod_of(manifest: Manifest) -> tuple[Manifest, Manifest]:
    """Metadata and spec of the pods of a workload, or of a pod itself."""
    pod = manifest if manifest["kind"] == "Pod" else manifest["spec"]["template"]
    return pod["metadata"], pod["spec"]


def arguments(manifests: Sequence[Manifest]) -> list[str]:
    """The operator's command line."""
    _, pod = pod_of(only(manifests, "Deployment"))
    return list(pod["containers"][0]["args"])
