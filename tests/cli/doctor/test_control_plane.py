"""What `rljob doctor` says of the API server, the RLJob resource, the operators and rights."""

import copy
from dataclasses import replace
from importlib.metadata import version

import pytest
from clusters import HEALTHY, cluster, deployment, found, need, only

from rljob_api.schema.crd import crd
from rljob_runtime.cli.doctor.cluster_facts import Right, UnreadableFact
from rljob_runtime.cli.doctor.examine import examine
from rljob_runtime.cli.doctor.findings import Status

DENIED = UnreadableFact('nodes is forbidden: User "me" cannot list resource "nodes"')


def test_nothing_fails_on_a_healthy_cluster_with_a_job_that_fits():
    findings = examine(HEALTHY, need())

    assert {finding.status for finding in findings} == {Status.OK}
    assert len(findings) == 12


def test_an_api_server_that_does_not_answer_is_the_only_line():
    silent = UnreadableFact("no answer from the API server (context lab, https://lab:6443)")

    (finding,) = examine(cluster(version=silent), need())

    assert (finding.check, finding.status, finding.text) == ("api-server", "fail", silent.why)
    assert finding.remedy


@pytest.mark.parametrize(
    ("told", "injection", "status"),
    [
        ("v1.28.9", "runtime", "fail"),
        ("v1.29.0", "runtime", "ok"),
        ("v1.33.1+k3s1", "dra", "fail"),
        ("v1.34.0", "dra", "ok"),
    ],
)
def test_kubernetes_is_new_enough_for_the_job(told, injection, status):
    asked = need(accelerator={"type": "ascend910b", "devicesPerNode": 8, "injection": injection})

    assert only("api-server", cluster(version=told), asked).status == status


def test_without_the_resource_the_remedy_is_the_chart():
    finding = only("rljob-crd", cluster(rljob_versions=(), rljob_crd=None))

    assert finding.status == "fail"
    assert finding.text == "is not installed; this client knows rljob.io/v1alpha1"
    assert "helm upgrade --install rljob" in finding.remedy


def test_a_job_of_a_version_that_the_cluster_does_not_serve_is_told_what_to_write():
    asked = need()
    job = asked.job.model_copy(update={"api_version": "rljob.io/v1beta1"})

    finding = only("rljob-crd", cluster(rljob_versions=("v1alpha1",)), replace(asked, job=job))

    assert finding.status == "fail"
    assert finding.text.endswith("is rljob.io/v1beta1; the cluster serves v1alpha1")
    assert "or write rljob.io/v1alpha1, which has the same fields" in finding.remedy


def test_an_older_resource_is_told_by_the_fields_that_it_lacks():
    older = copy.deepcopy(crd())
    spec = older["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["guards"]

    finding = only("rljob-crd", cluster(rljob_crd=older))

    assert finding.status == "warn"
    assert "lacks fields that this client knows: spec.guards, spec.guards." in finding.text


def test_a_newer_resource_is_told_by_the_fields_that_this_client_lacks():
    newer = copy.deepcopy(crd())
    spec = newer["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    spec["properties"]["telepathy"] = {"type": "boolean"}

    finding = only("rljob-crd", cluster(rljob_crd=newer))

    assert finding.status == "warn"
    assert finding.text.endswith("does not know: spec.telepathy")


def test_whoever_may_not_read_resources_still_learns_that_they_are_served():
    finding = only("rljob-crd", cluster(rljob_crd=DENIED))

    assert finding.status == "ok"
    assert DENIED.why in finding.text


def test_no_operator_an_unready_one_and_another_version():
    none = only("operator", cluster(operators=()))
    unready = only("operator", cluster(operators=(deployment(ready=0),)))
    old = only("operator", cluster(operators=(deployment(image="example.com/rljob:0.0.9"),)))

    assert (none.status, none.text) == ("fail", "no Deployment of rljob's operator")
    assert unready.status == "fail"
    assert "rljob-system/rljob-operator" in unready.text
    assert "0 of 1 pods" in unready.text
    assert old.status == "warn"
    assert f"0.0.9, this client {version('rljob')}" in old.text


def test_an_operator_that_looks_after_other_namespaces_is_named():
    elsewhere = deployment(arguments=("--namespace=team-a", "--namespace=team-b"))

    finding = only("operator", cluster(operators=(elsewhere,)))

    assert finding.status == "fail"
    assert "none looks after namespace research: " in finding.text
    assert "rljob-system/rljob-operator for team-a, team-b" in finding.text
    assert "watchNamespaces" in finding.remedy


def test_two_operators_of_one_namespace_are_refused():
    two = (deployment(), deployment(namespace="other"))

    finding = only("operator", cluster(operators=two))

    assert finding.status == "fail"
    assert "both look after namespace research" in finding.text


@pytest.mark.parametrize(
    ("tag", "status"), [("v1.5.2", "fail"), ("v1.6.2", "ok"), ("v1.7.0", "warn"), ("nightly", "ok")]
)
def test_kuberay_by_its_version(tag, status):
    kuberay = deployment("kuberay-operator", "kuberay", image=f"quay.io/kuberay/operator:{tag}")

    assert only("kuberay", cluster(kuberays=(kuberay,))).status == status


def test_kuberay_without_a_deployment_is_no_failure():
    assert only("kuberay", cluster(kuberays=())).status == "warn"


def test_resources_of_an_older_kuberay_are_told_by_their_fields():
    def ray(**options):
        fields = {"authOptions": {"properties": options}}
        schema = {"openAPIV3Schema": {"properties": {"spec": {"properties": fields}}}}
        return {"spec": {"versions": [{"name": "v1", "schema": schema}]}}

    old = only("raycluster-crd", cluster(ray_crd=ray(mode={})))
    new = only("raycluster-crd", cluster(ray_crd=ray(mode={}, secretName={})))

    assert old.status == "fail"
    assert "older than 1.6" in old.text
    assert new.status == "ok"


def test_what_may_not_be_seen_is_skipped_with_the_reason():
    blind = cluster(
        operators=DENIED, kuberays=DENIED, nodes=DENIED, pods=DENIED, storage_classes=DENIED,
        claims=DENIED, rights=DENIED, verdict=DENIED, rljob_crd=DENIED, ray_crd=DENIED,
    )  # fmt: skip
    asked = need(HEALTHY)

    findings = {finding.check: finding for finding in examine(blind, asked)}

    for check in ("operator", "kuberay", "rights", "devices", "placement", "storage", "job"):
        assert (findings[check].status, findings[check].text) == ("skipped", DENIED.why)
    assert not any(finding.status == "fail" for finding in findings.values())


def test_who_may_not_make_jobs_fails_and_who_may_not_read_logs_is_warned():
    make = Right(verb="create", resource="rljobs", group="rljob.io")
    read = Right(verb="get", resource="pods/log")

    findings = found("rights", cluster(rights=HEALTHY.rights | {make: False, read: False}))  # type: ignore[operator]

    assert [(f.status, f.text) for f in findings] == [
        ("fail", "you may not create rljobs.rljob.io in namespace research"),
        ("warn", "you may not get pods/log in namespace research: rljob logs will not work"),
    ]


def test_what_the_api_server_says_against_the_job_is_shown():
    refused = "create rljobs.rljob.io words: 403 exceeded quota: devices"

    finding = only("job", cluster(verdict=refused), need())

    assert finding.status == "fail"
    assert "exceeded quota: devices" in finding.text
