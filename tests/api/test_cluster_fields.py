"""What only a cluster reads is checked as strictly as the rest, and one machine does without it."""

import pytest

from rljob_api.check.cluster_rules import deadline_notes
from rljob_api.check.load import read_job
from rljob_api.check.run_rules import refusals
from rljob_api.spec.pods import parse_amount
from rljob_api.spec.rljob import CLUSTER_ONLY, RLJobSpec
from rljob_api.topology.devices import Pods, pods

WORKER = "spec.podTemplates.worker"
DEADLINES = {"spec.activeDeadlineSeconds": 600, "spec.startDeadlineSeconds": 60}

EVERYTHING = {
    "spec.image": "registry.example/rljob:1",
    "spec.suspend": True,
    "spec.backoffLimit": 0,
    **DEADLINES,
    "spec.progressDeadlineSeconds": 120,
    "spec.ttlSecondsAfterFinished": 0,
    "spec.cleanupPolicy": "Retain",
    "spec.failurePolicy": {
        "rules": [
            {"action": "FailJob", "onExitCodes": [2]},
            {"action": "Ignore", "onReasons": ["NodeLost", "WorkerKilled"]},
        ]
    },
    "spec.scheduling": {"scheduler": "kueue", "queue": "research", "priorityClass": "high"},
    "spec.checkpoint.storage": {"persistentVolumeClaim": {"claimName": "runs"}, "path": "a/b"},
    "spec.accelerator": {
        "type": "ascend910b",
        "devicesPerNode": 8,
        "injection": "hostPath",
        "nodeSelector": {"accelerator-type": "module-910b-8"},
    },
    WORKER: {
        "image": "registry.example/npu:1",
        "resources": {"requests": {"cpu": 4, "memory": "1.5Gi"}, "limits": {"cpu": "4500m"}},
        "nodeSelector": {"pool": "a"},
        "tolerations": [
            {"operator": "Exists"},
            {"key": "k", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5},
        ],
        "env": [
            {"name": "A", "value": ""},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ],
        "labels": {"team": "rl"},
        "annotations": {"example.com/note": "a note"},
        "priorityClassName": "high",
        "serviceAccountName": "trainer",
        "imagePullSecrets": [{"name": "registry"}],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
            {"name": "scratch", "emptyDir": {}},
        ],
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    },
}

WRONG = [
    # changes, path, fragments of the message
    ({"spec.backoffLimit": 101}, "spec.backoffLimit", "is 101; must be at most 100"),
    ({"spec.activeDeadlineSeconds": 0}, "spec.activeDeadlineSeconds", "must be at least 1"),
    ({"spec.suspend": "yes"}, "spec.suspend", "is 'yes'; must be true or false"),
    ({"spec.cleanupPolicy": "Delete"}, "spec.cleanupPolicy", "did you mean 'DeleteWorkers'"),
    (
        DEADLINES | {"spec.startDeadlineSeconds": 600},
        "spec.startDeadlineSeconds",
        "is 600, not below activeDeadlineSeconds 600, so it never acts",
    ),
    (
        {"spec.failurePolicy.rules": [{"action": "Ignore"}]},
        "spec.failurePolicy.rules[0]",
        "Ignore is for no failure; give onExitCodes, onReasons or both",
    ),
    (
        {"spec.failurePolicy.rules": [{"action": "Retry", "onExitCodes": [1]}]},
        "spec.failurePolicy.rules[0].action",
        "Legal values: FailJob, Restart, Ignore",
    ),
    (
        {"spec.failurePolicy.rules": [{"action": "Restart", "onExitCodes": [0]}]},
        "spec.failurePolicy.rules[0].onExitCodes[0]",
        "is 0; must be at least 1",
    ),
    (
        {"spec.failurePolicy.rules": [{"action": "Ignore", "onReasons": ["OOMKilled"]}]},
        "spec.failurePolicy.rules[0].onReasons[0]",
        "is 'OOMKilled'; did you mean 'WorkerKilled'? Legal values: DriverFailed, WorkerKilled, Stopped, "
        "GuardStopped, Hung, NoProgress, HeadLost, NodeLost, ClusterLost",
    ),
    ({"spec.scheduling.scheduler": "kai"}, "spec.scheduling.queue", "kai places nothing without"),
    (
        {"spec.scheduling.queue": "a"},
        "spec.scheduling.queue",
        "is 'a', but scheduler default has no queues; leave it out or use one of volcano, kueue",
    ),
    (
        {"spec.accelerator": {"type": "ascend910b", "devicesPerNode": 9}},
        "spec.accelerator.devicesPerNode",
        "does not give to a pod of a job on one node; use 5, 6, 7, 8, 10 or 12",
    ),
    (
        {"spec.accelerator": {"type": "ascend910b", "devicesPerNode": 4, "nodes": 2}},
        "spec.accelerator.devicesPerNode",
        "is 4, which ascend910b does not give to a pod of a job on several nodes; use 8 or 16",
    ),
    (
        {"spec.accelerator": {"type": "ascend910c", "devicesPerNode": 3}},
        "spec.accelerator.devicesPerNode",
        "is 3",
    ),
    (
        {"spec.accelerator.injection": "dra"},
        "spec.accelerator.injection",
        "is dra, but emulated devices are not injected",
    ),
    (
        {"spec.accelerator.nodeSelector": {"a b": "c"}},
        "spec.accelerator.nodeSelector[a b]",
        "'a b' is no key of Kubernetes",
    ),
    (
        {"spec.checkpoint.storage": {"hostPath": "/data"}},
        "spec.checkpoint.storage.hostPath",
        "unknown key 'hostPath'",
    ),
    (
        {"spec.checkpoint.storage": {"path": "a"}},
        "spec.checkpoint.storage",
        "has neither; give exactly one of persistentVolumeClaim and remote",
    ),
    (
        {
            "spec.checkpoint.storage": {
                "persistentVolumeClaim": {"claimName": "a"},
                "remote": {"uri": "s3://bucket/a"},
            }
        },
        "spec.checkpoint.storage",
        "has persistentVolumeClaim and remote; give exactly one of",
    ),
    *(
        (
            {"spec.checkpoint.storage": {"remote": {"uri": uri}}},
            "spec.checkpoint.storage.remote.uri",
            f"is '{uri.replace('key:secret', '***')}'; write s3://BUCKET/PREFIX or file:///PATH",
        )
        for uri in ("s3://key:secret@bucket/a", "s3://bucket/../a", "ftp://host/a", "file://a")
    ),
    (
        {
            "spec.checkpoint.storage": {
                "remote": {"uri": "s3://bucket", "endpoint": "https://key:secret@host"}
            }
        },
        "spec.checkpoint.storage.remote.endpoint",
        "write http://HOST or https://HOST",
    ),
    (
        {
            "spec.checkpoint.storage": {
                "remote": {"uri": "file:///mnt/runs", "endpoint": "https://host"}
            }
        },
        "spec.checkpoint.storage.remote.endpoint",
        "has no use with 'file:///mnt/runs'; leave it out or use s3://",
    ),
    (
        {
            "spec.checkpoint.storage": {
                "persistentVolumeClaim": {"claimName": "a"},
                "path": "../other",
            }
        },
        "spec.checkpoint.storage.path",
        "is '../other'; write a relative path",
    ),
    ({f"{WORKER}.securityContext": {}}, f"{WORKER}.securityContext", "unknown key"),
    (
        {f"{WORKER}.volumes": [{"name": "host", "hostPath": {"path": "/"}}]},
        f"{WORKER}.volumes[0].hostPath",
        "unknown key 'hostPath'",
    ),
    (
        {f"{WORKER}.volumes": [{"name": "a"}]},
        f"{WORKER}.volumes[0]",
        "has none of them; give exactly one of configMap, secret, persistentVolumeClaim, emptyDir",
    ),
    (
        {f"{WORKER}.volumes": [{"name": "rljob-a", "emptyDir": {}}]},
        f"{WORKER}.volumes[0].name",
        "is 'rljob-a', a name that the operator uses; rename the volume",
    ),
    (
        {f"{WORKER}.volumes": [{"name": "a", "emptyDir": {}}] * 2},
        f"{WORKER}.volumes",
        "has 'a' 2 times; keep one",
    ),
    (
        {f"{WORKER}.volumeMounts": [{"name": "a", "mountPath": "/a"}]},
        f"{WORKER}.volumeMounts[0].name",
        "is 'a', which volumes lacks; add it to volumes",
    ),
    (
        {f"{WORKER}.volumeMounts": [{"name": "a", "mountPath": "/dev/shm/x"}]},
        f"{WORKER}.volumeMounts[0].mountPath",
        "is '/dev/shm/x', which the operator uses",
    ),
    (
        {f"{WORKER}.env": [{"name": "RAY_AUTH_TOKEN", "value": "x"}]},
        f"{WORKER}.env[0].name",
        "RAY_AUTH_TOKEN is set by the cluster",
    ),
    ({f"{WORKER}.env": [{"name": "A"}]}, f"{WORKER}.env[0]", "exactly one of value, valueFrom"),
    (
        {f"{WORKER}.env": [{"name": "A", "valueFrom": {}}]},
        f"{WORKER}.env[0].valueFrom",
        "exactly one of secretKeyRef, configMapKeyRef",
    ),
    (
        {f"{WORKER}.env": [{"name": "A", "value": "1"}] * 2},
        f"{WORKER}.env",
        "has 'A' 2 times",
    ),
    (
        {f"{WORKER}.labels": {"ray.io/cluster": "x"}},
        f"{WORKER}.labels[ray.io/cluster]",
        "belongs to the operator",
    ),
    ({f"{WORKER}.labels": {"a": "b c"}}, f"{WORKER}.labels.a", "is 'b c'; use letters, digits"),
    (
        {f"{WORKER}.annotations": {"-": "x"}},
        f"{WORKER}.annotations[-]",
        "is no key of Kubernetes",
    ),
    (
        {f"{WORKER}.resources.limits": {"huawei.com/Ascend910": 8}},
        f"{WORKER}.resources.limits[huawei.com/Ascend910]",
        "is set by spec.accelerator.devicesPerNode",
    ),
    (
        {f"{WORKER}.resources": {"requests": {"cpu": "1500m"}, "limits": {"cpu": 1}}},
        f"{WORKER}.resources.requests[cpu]",
        "is 1500m, above the limit 1; lower it or raise limits",
    ),
    (
        {f"{WORKER}.resources.requests": {"cpu": "4 cores"}},
        f"{WORKER}.resources.requests.cpu",
        "is '4 cores'; must be an amount such as 4, 500m or 16Gi",
    ),
    (
        {f"{WORKER}.resources.requests": {"cpu": True}},
        f"{WORKER}.resources.requests.cpu",
        "is true; must be text",
    ),
    (
        {f"{WORKER}.tolerations": [{"operator": "Exists", "value": "v"}]},
        f"{WORKER}.tolerations[0].value",
        "has no use with operator Exists",
    ),
    (
        {f"{WORKER}.tolerations": [{"value": "v"}]},
        f"{WORKER}.tolerations[0].key",
        "is missing; operator Equal needs it",
    ),
    (
        {f"{WORKER}.tolerations": [{"operator": "Exists", "tolerationSeconds": 3}]},
        f"{WORKER}.tolerations[0].tolerationSeconds",
        "needs effect: NoExecute",
    ),
]


@pytest.mark.parametrize(("changes", "path", "fragment"), WRONG)
def test_a_wrong_field_of_a_cluster_is_refused_by_path(problems, changes, path, fragment):
    found = {problem.path: problem.message for problem in problems(changes)}

    assert fragment in found[path]


def test_a_job_may_say_all_of_it_at_once(manifest):
    spec = read_job(manifest(EVERYTHING)).spec

    assert spec.failure_policy.rules[1].on_reasons == ["NodeLost", "WorkerKilled"]
    assert spec.pod_templates.worker.resources.requests == {"cpu": "4", "memory": "1.5Gi"}


def test_one_machine_ignores_what_only_a_cluster_reads(job):
    changes = {key: EVERYTHING[key] for key in EVERYTHING if "accelerator" not in key}

    found = refusals(job(changes | {"spec.suspend": False}))

    assert found == []


def test_one_machine_refuses_a_job_that_is_suspended(job):
    (problem,) = refusals(job({"spec.suspend": True}))

    assert problem.path == "spec.suspend"
    assert (
        problem.message == "is true, but rljob run starts at once; set it to false or leave it out"
    )


def test_more_warehouses_than_nodes_share_the_pods(job):
    spec = job({"spec.accelerator.nodes": 2, "spec.dock.warehouses": 4}).spec

    assert pods(spec) == Pods(head=1, worker=2, warehouse=2)


@pytest.mark.parametrize(
    ("text", "number"),
    [("4", 4), ("250m", 0.25), ("1.5Gi", 1.5 * 2**30), ("2k", 2000), ("1M", 1e6)],
)
def test_amounts_are_kubernetes_quantities(text, number):
    assert float(parse_amount(text)) == number


def test_the_operator_alone_reads_the_sections_that_are_for_a_cluster():
    fields = RLJobSpec.model_fields.items()

    described = {name for name, field in fields if field.description.startswith("On a cluster")}

    assert described == set(CLUSTER_ONLY)


@pytest.mark.parametrize(("stage", "notes"), [(60, 0), (120, 1)])
def test_a_deadline_for_progress_that_passes_before_a_stages_own_is_noted(job, stage, notes):
    spec = job({"spec.progressDeadlineSeconds": 120, "spec.flow.stageTimeoutSeconds": stage}).spec

    found = [*deadline_notes(spec)]

    assert len(found) == notes
    assert all("spec.flow.stageTimeoutSeconds 120" in note for note in found)
