"""Where the chart is, and how to find things in what it renders."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "rljob"
KUBERNETES = "1.34"
EVERYTHING = f"--values={ROOT}/tests/operator/chart/everything.yaml"


def only(manifests, kind, name=None):
    """The one manifest of a kind, or of a kind and name."""
    (found,) = [m for m in manifests if m["kind"] == kind and name in (None, m["metadata"]["name"])]
    return found


def of_kind(manifests, kind):
    return [manifest for manifest in manifests if manifest["kind"] == kind]


def pod_of(manifest):
    """Metadata and spec of the pods of a workload, or of a pod itself."""
    pod = manifest if manifest["kind"] == "Pod" else manifest["spec"]["template"]
    return pod["metadata"], pod["spec"]


def arguments(manifests):
    """The operator's command line."""
    _, pod = pod_of(only(manifests, "Deployment"))
    return pod["containers"][0]["args"]
