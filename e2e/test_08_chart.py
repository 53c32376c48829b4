"""The chart: what the API server says of it, and its own test."""

from pathlib import Path

from support.cluster import Cluster
from support.tools import ROOT, run


def test_the_api_server_takes_every_manifest(
    release: Cluster, values: list[str], tmp_path: Path
) -> None:
    folder = str(ROOT / "helm/rljob")
    template = ["helm", "template", "rljob", folder, "--kube-version", "1.34.0"]
    file = tmp_path / "rendered.yaml"
    file.write_text(run([*template, "-n", release.namespace, *values], seconds=60))

    said = run(
        ["kubectl", "apply", "--server-side", "--force-conflicts", "--dry-run=server",
         "-n", release.namespace, "-f", str(file)],
        seconds=60,
    )  # fmt: skip

    assert "rljob-operator" in said


def test_the_charts_own_test_passes(release: Cluster) -> None:
    said = run(["helm", "test", "rljob", "-n", release.namespace, "--timeout", "90s"], seconds=120)

    assert "Succeeded" in said
