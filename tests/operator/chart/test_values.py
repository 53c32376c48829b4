"""The chart's values: each is documented, typed and reaches a manifest; unknown ones are refused."""

import json
import subprocess
import sys
import tomllib

import kubernetes_validate
import pytest
import yaml
from chart_manifests import CHART, EVERYTHING, KUBERNETES, ROOT, of_kind, only, pod_of

from rljob_api.schema import crd

OF_OTHERS = {"PodMonitor", "PrometheusRule", "ServiceMonitor"}


def leaves(values, path=()):
    """The path of every value that is no mapping."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def schema_at(schema, path):
    """The schema of a value; KeyError where there is none."""
    root = schema
    for key in path:
        if "$ref" in schema:
            schema = root["definitions"][schema["$ref"].rpartition("/")[2]]
        schema = schema["properties"][key]
    return schema


def objects(schema):
    """Every schema of a mapping with named keys."""
    if "properties" in schema:
        yield schema
    inner = [*schema.get("properties", {}).values(), *schema.get("definitions", {}).values()]
    for part in inner:
        yield from objects(part)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ("replica=2", "additional properties 'replica' not allowed"),
        ("image.operator.tags=1", "additional properties 'tags' not allowed"),
        ("replicas=0", "minimum: got 0, want 1"),
        ("logLevel=TRACE", "at '/logLevel'"),
        ("watchNamespaces={Team_A}", "at '/watchNamespaces/0'"),
        ("jobs.networkPolicy.egressCIDRs={10.0.0.1}", "at '/jobs/networkPolicy/egressCIDRs/0'"),
        ("image.runtime.digest=sha256:12", "at '/image/runtime/digest'"),
        ("emulatedDevicePlugin.devicesPerNode=eight", "got string, want integer"),
        ("metrics.serviceMonitor.enabled=true", "set metrics.namespace"),
        ("metrics.podMonitor.enabled=true", "set metrics.namespace"),
    ],
)
def test_a_wrong_value_is_refused_by_name(refusal, values, told):
    assert told in refusal(values)


def test_the_schema_knows_every_value_and_is_closed_everywhere():
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    for path in leaves(values):
        open_ended = {"limits", "requests", "grafana_dashboard"} & set(path)
        if not open_ended:
            schema_at(schema, path)
    assert all(part["additionalProperties"] is False for part in objects(schema))


def test_every_value_is_documented_and_the_readme_shows_it():
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "chart_docs.py", "--check"],
        capture_output=True, text=True,
    )  # fmt: skip

    rows = (CHART / "README.md").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert (done.returncode, done.stderr) == (0, "")
    for path in leaves(values):
        prefixes = {".".join(path[:end]) for end in range(1, len(path) + 1)}
        assert any(f"| `{prefix}` |" in rows for prefix in prefixes), path


def test_the_file_with_everything_changes_every_default():
    given = yaml.safe_load((ROOT / "tests" / "operator" / "chart" / "everything.yaml").read_text())
    usual = yaml.safe_load((CHART / "values.yaml").read_text())
    left = {
        ("image", "operator", "digest"), ("image", "runtime", "tag"), ("image", "ascend", "digest"),
        ("image", "devicePlugin", "digest"), ("watchNamespaces",), ("crds", "install"),
        ("rbac", "create"), ("rbac", "users"), ("rbac", "aggregate"), ("serviceAccount", "create"),
        ("podDisruptionBudget", "enabled"), ("networkPolicy", "enabled"),
        ("metrics", "dashboard", "labels", "grafana_dashboard"),
    }  # fmt: skip

    same = set()
    for path in leaves(usual):
        value, default = given, usual
        for key in path:
            value, default = value.get(key, {}), default[key]
        if value in ({}, default) and path[0] != "resources" and "resources" not in path:
            same.add(path)

    assert same == left


def test_the_chart_has_the_packages_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert chart["version"] == chart["appVersion"] == project["version"]


def test_the_crd_is_the_generated_one_and_stays_when_the_release_goes(render):
    found = only(render(), "CustomResourceDefinition")

    annotations = found["metadata"].pop("annotations")
    labels = found["metadata"].pop("labels")
    assert found == crd.crd()
    assert annotations == {"helm.sh/resource-policy": "keep"}
    assert labels["app.kubernetes.io/component"] == "crd"


def test_the_crd_can_go_with_the_release_or_be_left_out(render):
    (going,) = of_kind(render("crds.keep=false"), "CustomResourceDefinition")

    assert "annotations" not in going["metadata"]
    assert of_kind(render("crds.install=false"), "CustomResourceDefinition") == []


def test_a_digest_takes_the_place_of_the_tag(render):
    digest = "sha256:" + 4 * "0123456789abcdef"

    manifests = render(f"image.operator.digest={digest}", "image.operator.tag=1.2.3")

    for manifest in (only(manifests, "Deployment"), only(manifests, "Pod")):
        (container,) = pod_of(manifest)[1]["containers"]
        assert container["image"] == f"ghcr.io/rljob/operator@{digest}"


def test_what_is_off_by_default_is_not_there(render):
    kinds = {manifest["kind"] for manifest in render()}

    assert kinds.isdisjoint(OF_OTHERS | {"DaemonSet", "ConfigMap", "PodDisruptionBudget"})


def test_two_releases_share_no_name_beside_what_can_be_turned_off(helm):
    def names(*options):
        text = helm(*options, "crds.install=false", "rbac.users=false").stdout
        return {(m["kind"], m["metadata"]["name"]) for m in yaml.safe_load_all(text) if m}

    assert names().isdisjoint(names("fullnameOverride=other"))


@pytest.mark.parametrize(
    "values", [(), ("watchNamespaces={team-a}",), (EVERYTHING,)], ids=["usual", "one", "all"]
)
def test_every_manifest_is_what_kubernetes_takes(render, values):
    manifests = render(*values)

    for manifest in manifests:
        if manifest["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
