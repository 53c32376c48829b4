"""What the contract accepts of names, labels and mounts, the API server accepts, too."""

import pytest
from cluster_jobs import JOB, identity, merged

from rljob_api.check.load import read_job
from rljob_api.spec.problems import InvalidJob
from rljob_operator.build.cluster import GroupOverrides, ray_cluster
from rljob_operator.build.gang import gang
from rljob_operator.build.pods import pod_template
from rljob_operator.settings import Settings

DRY_RUN = "?dryRun=All&fieldValidation=Strict"
SETTINGS = Settings(
    runtime_image="example.com/a:1", ascend_image="example.com/b:1", shared_memory="host-path"
)
METADATA = {
    "a team": {"labels": {"team": "search", "example.com/cost-centre": "a_1.b"}},
    "an empty value": {"labels": {"team": ""}},
    "a value of 63": {"labels": {"team": "a" * 63}},
    "a value of 64": {"labels": {"team": "a" * 64}},
    "a value with a blank": {"labels": {"team": "web search"}},
    "a value that ends in a dash": {"labels": {"team": "web-"}},
    "a key with two slashes": {"labels": {"a/b/c": "d"}},
    "a key of 64": {"labels": {"a" * 64: "d"}},
    "a name with a long prefix": {"labels": {f"{'a' * 60}.{'b' * 60}/c": "d"}},
    "a note": {"annotations": {"example.com/note": "any text: öäü, {}\n"}},
    "a note under no key": {"annotations": {"a note": "b"}},
    "the longest name": {"name": "a" * 40},
    "too long a name": {"name": "a" * 254},
    "capitals": {"name": "Spell"},
    "a blank": {"name": "spell backward"},
}
MOUNTS = {
    "/data": None,
    "/data/more.d": None,
    "/run": None,
    "/run/rljob": "which the operator uses",
    "/run//rljob": "which the operator uses",
    "/run/./rljob": "which the operator uses",
    "/run/rljob/more": "which the operator uses",
    "/run/rljobs": None,
    "/var/lib/rljob": "which the operator uses",
    "/dev/shm": "which the operator uses",
}


def refused(job) -> str:
    """Why the contract refuses a job; "" where it does not."""
    try:
        read_job(job)
    except InvalidJob as invalid:
        return "; ".join(str(problem) for problem in invalid.problems)
    return ""


@pytest.mark.parametrize("case", METADATA)
def test_metadata_is_refused_before_the_server_refuses_it(server, namespace, case):
    job = merged(JOB, {"metadata": METADATA[case]})

    answer = server.request(
        "POST", f"/apis/rljob.io/v1alpha1/namespaces/{namespace}/rljobs{DRY_RUN}", job
    )

    assert bool(refused(job)) == (answer.code != 201), (refused(job), answer.body)


@pytest.mark.parametrize("path", MOUNTS)
def test_pods_with_a_mount_that_the_contract_accepts_are_accepted(server, namespace, path):
    volume = {"name": "mine", "emptyDir": {}}
    pod = {"volumes": [volume], "volumeMounts": [{"name": "mine", "mountPath": path}]}
    job = merged(JOB, {"spec": {"podTemplates": {"worker": pod}}})

    why = refused(job)

    assert (MOUNTS[path] or "") in why
    if MOUNTS[path] is None:
        assert why == ""
        checked = read_job(job)
        made = pod_template(
            checked, identity(), SETTINGS, role="worker",
            gang=gang(checked.spec.scheduling, SETTINGS, cluster="c"),
        )  # fmt: skip
        made["metadata"]["name"] = "p"
        answer = server.request("POST", f"/api/v1/namespaces/{namespace}/pods{DRY_RUN}", made)
        assert answer.code == 201, answer.body


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("kueue.x-k8s.io/queue-name", "scheduler: kueue and spec.scheduling.queue: team-a"),
        ("volcano.sh/queue-name", "scheduler: volcano and spec.scheduling.queue: team-a"),
        (
            "kueue.x-k8s.io/priority-class",
            "scheduler: kueue and spec.scheduling.priorityClass: team-a",
        ),
    ],
)
def test_a_queue_that_a_label_names_is_one_of_spec_scheduling(key, field):
    job = merged(JOB, {"metadata": {"labels": {key: "team-a"}}})

    assert refused(job) == (
        f"metadata.labels[{key}]: does nothing on an RLJob; set spec.scheduling.{field}"
    )


def test_a_label_that_says_what_spec_scheduling_says_is_accepted():
    job = merged(JOB, {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "team-a"}}})
    job = merged(job, {"spec": {"scheduling": {"scheduler": "kueue", "queue": "team-a"}}})

    assert refused(job) == ""


def test_the_ray_cluster_has_the_jobs_labels_and_annotations_but_those_of_others_tools():
    metadata = {
        "labels": {"team": "search", "app.kubernetes.io/name": "mine", "rljob.io/job": "other"},
        "annotations": {
            "example.com/note": "from the job",
            "kubectl.kubernetes.io/last-applied-configuration": "{}",
            "kopf.zalando.org/last-handled-configuration": "{}",
            "ray.io/disable-provisioned-head-restart": "false",
        },
    }
    job = read_job(merged(JOB, {"metadata": metadata}))

    made = ray_cluster(job, identity(), SETTINGS, name="spell-backward-0", groups=GroupOverrides())

    assert made["metadata"]["labels"]["team"] == "search"
    assert made["metadata"]["labels"]["app.kubernetes.io/name"] == "rljob"
    assert made["metadata"]["labels"]["rljob.io/job"] == "spell-backward"
    assert made["metadata"]["annotations"] == {
        "example.com/note": "from the job",
        "ray.io/disable-provisioned-head-restart": "true",
    }


@pytest.mark.parametrize("name", ["127.0.0.1:9/x?", "a.b", "a/b", "A"])
def test_no_status_sends_the_operator_elsewhere_than_to_the_jobs_head(server, namespace, name):
    path = f"/apis/rljob.io/v1alpha1/namespaces/{namespace}/rljobs"
    assert server.request("POST", path, JOB).code == 201
    status = {"status": {"rayCluster": {"name": name}}}

    answer = server.request(
        "PATCH",
        f"{path}/{JOB['metadata']['name']}/status",
        status,
        content_type="application/merge-patch+json",
    )

    assert answer.code == 422
    assert "rayCluster.name" in answer.body["message"]
