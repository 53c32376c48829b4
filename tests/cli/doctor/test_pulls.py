"""What a job's pods name and pull: Secrets of the right type, images, and who waits for one in vain."""

from types import SimpleNamespace
from typing import Any

import pytest
from cluster_jobs import JOB, merged
from clusters import DEPLOYED, RUNTIME, cluster, deployment, found, need, only

from rljob_api.check.load import read_job
from rljob_runtime.cli.doctor.cluster_facts import Reference, UnreadableFact
from rljob_runtime.cli.doctor.gather import gather
from rljob_runtime.cli.doctor.installed import operator_of_deployment
from rljob_runtime.cli.doctor.need import references_of
from rljob_runtime.errors import ClusterError, NotThere

DOCKER = "kubernetes.io/dockerconfigjson"
PULLED = Reference("secrets", "registry", "podTemplates.worker.imagePullSecrets", pulls=True)
CHARTS = Reference("secrets", "login", "the chart's jobs.imagePullSecrets", pulls=True)
BUCKET = Reference("secrets", "bucket", "checkpoint.storage.remote.secretName")
KEYS = Reference("secrets", "keys", "tracking.secretName")
OPERATOR = deployment(arguments=("--image-pull-secret=login",))
SPEC: dict[str, Any] = {
    "checkpoint": {"storage": {"remote": {"uri": "s3://runs/a", "secretName": "bucket"}}},
    "podTemplates": {"worker": {"imagePullSecrets": [{"name": "registry"}]}},
    "tracking": {"tensorboard": {}, "secretName": "keys"},
}
NOT_FOUND = (
    f'Back-off pulling image "{RUNTIME}": ErrImagePull: rpc error: code = NotFound desc = failed to pull and '
    f'unpack image "{RUNTIME}": failed to resolve reference "{RUNTIME}": {RUNTIME}: not found'
)


def job(**spec: Any) -> Any:
    return read_job(merged(JOB, {"spec": spec}))


def stuck(
    name: str, reason: str, message: str = "", *, image: str = RUNTIME, kind: str = ""
) -> Any:
    """A pod whose container waits. kind: "init", or "" for the pod's own."""
    state = {"waiting": {"reason": reason, "message": message}}
    containers, statuses = ("initContainers", "initContainerStatuses") if kind else (
        "containers", "containerStatuses",
    )  # fmt: skip
    return {
        "metadata": {"name": name},
        "spec": {"containers": [], containers: [{"name": "c", "image": image}]},
        "status": {statuses: [{"name": "c", "state": state}]},
    }


class SecretsAlone:
    """Calls that answer nothing but what Secrets and ConfigMaps are there, and which operator."""

    namespace = "research"
    connection = SimpleNamespace(where="here")

    def __init__(self, **types: str) -> None:
        self.types = types
        self.asked: list[dict[str, Any]] = []

    def request(self, verb: str, path: str, *, resource: str, name: str = "", **how: Any) -> Any:
        if resource == "deployments" and "name=rljob," in how["query"]["labelSelector"]:
            return {"items": [OPERATOR]}
        if resource not in ("secrets", "configmaps"):
            raise ClusterError("forbidden")
        self.asked.append(how)
        if name not in self.types:
            raise NotThere(name)
        columns = ["Name", "Type", "Data", "Age"]
        cells = [name, self.types[name], 1, "5s"]
        if resource == "configmaps":
            del columns[1], cells[1]
        definitions = [{"name": column} for column in columns]
        return {"kind": "Table", "columnDefinitions": definitions, "rows": [{"cells": cells}]}


def test_a_job_names_secrets_and_so_does_the_chart():
    references = references_of(job(**SPEC), operator_of_deployment(OPERATOR))

    assert set(references) == {CHARTS, PULLED, BUCKET, KEYS}


def test_a_secret_that_two_roles_pull_with_is_looked_at_once_and_again_where_containers_read_it():
    template = {"imagePullSecrets": [{"name": "registry"}]}
    both = {"podTemplates": {"head": template, "worker": template}}
    reading = {"tracking": {"tensorboard": {}, "secretName": "registry"}}

    references = references_of(job(**both, **reading), None)

    assert [(one.field, one.pulls) for one in references] == [
        ("podTemplates.head.imagePullSecrets", True),
        ("tracking.secretName", False),
    ]


def test_types_come_in_a_table_without_objects_so_that_no_content_leaves_the_server():
    variable = {"name": "CA", "valueFrom": {"configMapKeyRef": {"name": "roots", "key": "ca"}}}
    worker = SPEC["podTemplates"]["worker"] | {"env": [variable]}
    calls: Any = SecretsAlone(registry="Opaque", login=DOCKER, roots="")

    facts = gather(calls, job(**SPEC | {"podTemplates": {"worker": worker}}), None)

    assert {str(one): kind for one, kind in facts.references.items()} == {
        "Secret login": DOCKER,
        "Secret registry": "Opaque",
        "Secret bucket": None,
        "Secret keys": None,
        "ConfigMap roots": "",
    }
    for how in calls.asked:
        assert how["accept"].startswith("application/json;as=Table")
        assert "," not in how["accept"]  # no second choice, which would be the whole object
        assert how["query"] == {"includeObject": "None"}


def test_a_missing_secret_is_named_with_its_field_and_one_that_may_not_be_seen_is_skipped():
    denied = UnreadableFact("you may not get secrets")
    facts = cluster(references={PULLED: DOCKER, BUCKET: None, KEYS: denied})

    told: dict[str, Any] = {finding.status: finding for finding in found("secrets", facts, need())}

    assert told["ok"].text == "Secret registry: there"
    assert told["fail"].text == (
        "namespace research has no Secret bucket, which checkpoint.storage.remote.secretName names"
    )
    assert told["skipped"].text == "Secret keys of tracking.secretName: you may not get secrets"


def test_a_pull_secret_of_another_type_fails_with_its_type_and_the_commands():
    finding = only("secrets", cluster(references={PULLED: "Opaque"}), need())

    assert finding.status == "fail"
    assert finding.text == (
        "Secret registry, which podTemplates.worker.imagePullSecrets names, is of type Opaque; "
        f"images are pulled with {DOCKER} alone"
    )
    assert finding.remedy.startswith(
        "kubectl -n research delete secret registry, "
        "then kubectl -n research create secret docker-registry registry "
    )


@pytest.mark.parametrize("kind", [DOCKER, "kubernetes.io/dockercfg"])
def test_both_types_of_a_registrys_secret_will_do(kind):
    assert only("secrets", cluster(references={PULLED: kind}), need()).status == "ok"


def test_a_secret_that_containers_read_may_be_of_any_type():
    assert only("secrets", cluster(references={KEYS: "Opaque"}), need()).status == "ok"


def test_the_charts_pull_secrets_are_looked_for_without_a_job_too():
    finding = only("secrets", cluster(references={CHARTS: None}))

    assert finding.status == "fail"
    assert finding.text == (
        "namespace research has no Secret login, which the chart's jobs.imagePullSecrets names"
    )
    assert "create secret docker-registry login" in finding.remedy


def test_where_nobody_names_a_secret_nothing_is_said_of_secrets():
    assert references_of(job(), operator_of_deployment(DEPLOYED)) == []
    assert found("secrets", cluster(), need()) == []


def test_images_of_a_job_are_the_operators_unless_it_names_its_own():
    assert only("images", cluster(), need()).text.startswith(f"{RUNTIME}, pulled")


def test_an_image_without_a_fixed_build_and_several_images_are_warned_of():
    latest = only("images", cluster(), need(image="registry:5000/rljob"))
    several = found(
        "images", cluster(), need(image="a/b:1", podTemplates={"head": {"image": "a/b:2"}})
    )

    assert latest.status == "warn"
    assert "registry:5000/rljob names no fixed build" in latest.text
    assert [f.status for f in several] == ["warn"]
    assert "a/b:2, a/b:1" in several[0].text


def test_images_are_not_known_where_the_operator_is_not_seen():
    asked = need(cluster(operators=()))

    assert only("images", cluster(), asked).status == "skipped"


def test_pods_that_wait_in_vain_for_the_jobs_image_are_one_line_with_the_registrys_answer():
    pods = (
        stuck("old-head", "ErrImagePull"),
        stuck("old-worker", "ImagePullBackOff", NOT_FOUND, kind="init"),
    )

    finding = only("image-pulls", cluster(namespace_pods=pods), need())

    assert finding.status == "warn"
    assert finding.text == (
        f"old-worker and 1 more wait in vain for {RUNTIME}: ImagePullBackOff: failed to pull and "
        f'unpack image "{RUNTIME}": failed to resolve reference "{RUNTIME}": {RUNTIME}: not found'
    )
    assert finding.remedy.startswith(f"check that {RUNTIME} exists")


def test_of_a_long_message_the_end_is_shown():
    long = "desc = " + "very " * 100 + "unauthorized"

    finding = only(
        "image-pulls", cluster(namespace_pods=(stuck("p", "ErrImagePull", long),)), need()
    )

    assert finding.text.startswith(f"p waits in vain for {RUNTIME}: ErrImagePull: …")
    assert finding.text.endswith("very unauthorized")
    assert len(finding.text) < 250


@pytest.mark.parametrize(
    "pod",
    [stuck("p", "ContainerCreating"), stuck("p", "ErrImagePull", image="other:1"),
     {"metadata": {"name": "p"}, "spec": {"containers": []}}],
)  # fmt: skip
def test_pods_that_wait_for_something_else_are_no_matter(pod):
    assert found("image-pulls", cluster(namespace_pods=(pod,)), need()) == []
