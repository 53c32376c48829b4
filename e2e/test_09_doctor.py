"""`rljob doctor` on a cluster that runs jobs: it passes, its pods talk and are gone, wrong jobs are named."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cluster import Cluster, Manifest
from support.jobs import small
from support.tools import ROOT

DOCTOR_SECONDS = 300.0


@pytest.fixture
def doctor(cluster: Cluster, tmp_path: Path) -> Any:
    """doctor(job, *options): the exit code, and findings by check, the last of each."""

    def ask(job: Manifest, *options: str) -> tuple[int, dict[str, Manifest]]:
        file = tmp_path / "job.yaml"
        file.write_text(yaml.safe_dump(job))
        words = [".venv/bin/rljob", "doctor", str(file), "-n", cluster.namespace, "--json"]
        done = subprocess.run(
            [*words, *options], cwd=ROOT, capture_output=True, text=True, timeout=DOCTOR_SECONDS
        )
        assert done.stdout.startswith("{"), done.stderr
        findings = json.loads(done.stdout)["findings"]
        return done.returncode, {finding["check"]: finding for finding in findings}

    return ask


def no_pods_are_left(cluster: Cluster) -> bool:
    return cluster.objects("Pod", selector="rljob.io/probe") == []


def test_a_job_that_fits_passes_and_its_probe_sums_over_both_nodes(
    cluster: Cluster, doctor: Any
) -> None:
    code, found = doctor(small("fits", nodes=2), "--probe")

    assert code == 0, found
    for check in ("operator", "devices", "placement", "storage", "job", "probe-pods", "disk"):
        assert found[check]["status"] == "ok", found[check]
    for check in ("shared-memory", "clocks", "networks", "all-reduce"):
        assert found[check]["status"] == "ok", found[check]
    assert "gloo over 2 pods" in found["all-reduce"]["text"]
    assert no_pods_are_left(cluster)


def test_more_devices_than_a_node_has_are_named_with_the_number_that_fits(
    cluster: Cluster, doctor: Any
) -> None:
    job = small("greedy", nodes=2)
    job["spec"]["accelerator"]["devicesPerNode"] = 16
    job["spec"]["batch"]["globalBatchSize"] = 32
    job["spec"]["podTemplates"] = {"worker": {"imagePullSecrets": [{"name": "absent"}]}}

    code, found = doctor(job, "--probe")

    assert code == 1
    assert found["placement"]["remedy"] == (
        "set accelerator.devicesPerNode to at most 8, or add nodes"
    )
    assert found["probe-pods"]["status"] == "skipped"
    assert "no Secret absent" in found["secrets"]["text"]


def test_an_image_that_does_not_exist_is_named_by_the_probe(cluster: Cluster, doctor: Any) -> None:
    image = "localhost/rljob-nothing:1"
    job = small("imageless", image=image)
    everywhere = {"name": "kube-root-ca.crt", "key": "ca.crt"}
    variable = {"name": "CA", "valueFrom": {"configMapKeyRef": everywhere}}
    job["spec"]["podTemplates"] = {"worker": {"env": [variable]}}

    code, found = doctor(job, "--probe")

    assert code == 1
    assert found["placement"]["status"] == "ok"
    assert found["secrets"]["text"] == "ConfigMap kube-root-ca.crt: there"
    assert found["probe-pods"]["status"] == "fail"
    assert image in found["probe-pods"]["text"]
    assert no_pods_are_left(cluster)


def test_an_image_of_the_head_alone_and_a_pull_secret_of_another_type_are_named(
    cluster: Cluster, doctor: Any
) -> None:
    metadata = {"name": "login", "namespace": cluster.namespace}
    cluster.apply({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": metadata})
    image = "localhost/rljob-nothing:2"
    head = {"image": image, "imagePullSecrets": [{"name": "login"}]}

    code, found = doctor(small("headless", podTemplates={"head": head}), "--probe")
    cluster.delete("Secret", "login")

    assert code == 1
    assert "is of type Opaque" in found["secrets"]["text"]
    assert found["probe-pods"]["status"] == "ok"
    assert found["other-images"]["status"] == "fail"
    assert found["other-images"]["text"].startswith(f"{image} of the head")
    assert no_pods_are_left(cluster)
