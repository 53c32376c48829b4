"""The chart: what the API server says of it, its own test, and that an upgrade disturbs no job."""

from pathlib import Path

import pytest
from support.cluster import Cluster
from support.jobs import small
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


def test_an_upgrade_from_the_previous_commit_keeps_jobs(
    release: Cluster, cluster: Cluster, values: list[str], tmp_path: Path
) -> None:
    history = run(
        ["git", "rev-list", "--count", "HEAD", "--", "helm/rljob"], seconds=30, check=False
    )
    if not history.strip() or int(history) < 2:
        pytest.skip("there is no earlier chart in this checkout's history")
    earlier = run(
        ["git", "log", "-1", "--skip=1", "--format=%H", "--", "helm/rljob"], seconds=30
    ).strip()
    run(["sh", "-c", f"git archive {earlier} helm/rljob | tar -x -C {tmp_path}"], seconds=30)
    upgrade = ["helm", "upgrade", "rljob", "-n", release.namespace, "--wait", "--timeout", "120s"]

    run([*upgrade, str(tmp_path / "helm/rljob"), *values], seconds=180)
    cluster.apply(small("kept", suspend=True))
    run([*upgrade, str(ROOT / "helm/rljob"), *values], seconds=180)

    kept = cluster.wait_for_job(
        "kept",
        "the new operator looks after it",
        lambda job: job["status"]["phase"] == "Suspended",
        seconds=60,
    )
    assert kept["spec"]["suspend"] is True
    cluster.delete_job("kept")
