"""From the chart of the release before to this one by `helm upgrade`, and back, on an API server with a job.

The chart of the release before is tests/fixtures/last_release/chart.tgz. No pods run there.
"""

import os
import shutil
import subprocess
import time

import pytest
import yaml
from api_server import ApiServerMissing, api_server
from chart_manifests import CHART, ROOT
from programs import require

LEFT = ROOT / "tests" / "fixtures" / "last_release"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rljobs.rljob.io"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles?labelSelector=app.kubernetes.io/part-of%3Drljob"
MERGE = "application/merge-patch+json"
NAMESPACE = ["--namespace", "rljob-system"]


def jobs(version, name=""):
    return f"/apis/rljob.io/{version}/namespaces/default/rljobs/{name}".rstrip("/")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """An API server without the kind RLJob, which the chart brings."""
    try:
        with api_server(tmp_path_factory.mktemp("upgraded"), rljobs=False) as server:
            yield server
    except ApiServerMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def helm_does(cluster, tmp_path):
    program = shutil.which("helm")
    require("helm", program)
    own = dict.fromkeys(("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"), str(tmp_path))
    own["KUBECONFIG"] = str(cluster.kubeconfig())

    def run(*words):
        done = subprocess.run(
            [program, *map(str, words), *NAMESPACE],
            env=os.environ | own, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

    return run


def test_jobs_are_there_before_and_after_an_upgrade_and_after_its_rollback(cluster, helm_does):
    old, new = (next(_jobs_of(LEFT / "rljobs.yaml")), next(_jobs_of(ROOT / "examples/async.yaml")))
    helm_does("install", "rljob", LEFT / "chart.tgz", "--create-namespace")
    served(cluster, "v1alpha1", 200)
    assert cluster.request("POST", jobs("v1alpha1"), old).code == 201
    path = jobs("v1alpha1", f"{old['metadata']['name']}/status")
    running = {"status": {"phase": "Running", "attempt": 2}}
    made = cluster.request("PATCH", path, running, content_type=MERGE).body

    helm_does("upgrade", "rljob", CHART, "--reset-then-reuse-values")
    served(cluster, "v1beta1", 200)
    kept = [cluster.request("GET", jobs(version, old["metadata"]["name"])).body
            for version in ("v1alpha1", "v1beta1")]  # fmt: skip
    new["metadata"]["name"] = "written-later"
    later = cluster.request("POST", jobs("v1beta1"), new)
    stored = cluster.request("GET", CRD).body["status"]["storedVersions"]
    roles = _names(cluster.request("GET", ROLES).body)

    helm_does("rollback", "rljob")
    served(cluster, "v1beta1", 404)
    served(cluster, "v1alpha1", 200)
    left = cluster.request("GET", jobs("v1alpha1")).body

    assert kept[1] == kept[0] | {"apiVersion": "rljob.io/v1beta1"}
    assert _holds(kept[0], made)  # and defaults of fields that are new
    assert later.code == 201 and stored == ["v1alpha1"]
    assert {"rljob-viewer", "rljob-editor", "rljob-operator"} == roles
    assert _names(left) == {old["metadata"]["name"], "written-later"}
    assert next(j for j in left["items"] if "status" in j)["status"] == running["status"]


def served(cluster, version, code):
    """Return once a list of a version is answered so."""
    deadline = time.monotonic() + 60
    while cluster.request("GET", jobs(version), accept="*/*").code != code:
        assert time.monotonic() < deadline, f"{version} is not answered with {code} after 60 s"
        time.sleep(0.1)


def _jobs_of(file):
    return yaml.safe_load_all(file.read_text())


def _holds(found, wanted):
    """Whether all of `wanted` is there."""
    if isinstance(wanted, dict):
        return all(key in found and _holds(found[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(_holds, found, wanted))
    return found == wanted


def _names(listed):
    return {item["metadata"]["name"] for item in listed["items"]}
