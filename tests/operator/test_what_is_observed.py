"""Manifests as the API server has them, read as the world that decisions are made about."""

import dataclasses
from typing import Any

from cluster_jobs import JOB, SETTINGS, identity, make_job

from rljob_api.spec.pods import PodTemplate
from rljob_api.topology.pod_names import BRING_UP_FILE
from rljob_operator.build.volumes import volumes
from rljob_operator.decide.model import Cluster, RayAnswer
from rljob_operator.reconcile.observe import cluster_of, job_of, observation_of, pod_of, status_of
from rljob_operator.watch.cache import Cache

UID = "0b9dd3a5-2d4c-4e6f-8a51-7c6f1d2e3f40"
OWNER = {"apiVersion": "rljob.io/v1alpha1", "kind": "RLJob", "name": "spell-backward", "uid": UID}


def rljob(**changes: Any) -> dict[str, Any]:
    metadata = {
        "name": "spell-backward",
        "namespace": "research",
        "uid": UID,
        "generation": 3,
        "resourceVersion": "17",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"},
    }
    return {**JOB, "metadata": metadata, **changes}


def child(kind: str, name: str, uid: str = UID, **metadata: Any) -> dict[str, Any]:
    labels = {"rljob.io/job": "spell-backward"} | metadata.pop("labels", {})
    owned = {"ownerReferences": [{**OWNER, "uid": uid}]}
    return {
        "kind": kind,
        "metadata": {
            "name": name, "namespace": "research", "uid": f"uid-of-{name}", "labels": labels,
        } | owned | metadata,
    }  # fmt: skip


def pod(name: str, cluster: str, role: str, *, status: dict[str, Any], **metadata: Any):
    labels = {"ray.io/cluster": cluster, "rljob.io/role": role}
    made = child("Pod", name, labels=labels, **metadata)
    return {**made, "spec": {"nodeName": "node-1"}, "status": status}


def ray_container(**container: Any) -> list[dict[str, Any]]:
    return [{"name": "sidecar", "restartCount": 9}, {"name": "ray-head", **container}]


READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def test_the_api_servers_own_fields_do_not_make_a_job_invalid() -> None:
    job, problems = job_of(rljob())

    assert problems == ()
    assert job is not None
    assert job.spec.steps == 10


def test_a_wrong_spec_is_told_by_its_problems() -> None:
    job, problems = job_of(rljob(spec={**JOB["spec"], "steps": 0}))

    assert job is None
    assert [problem.path for problem in problems] == ["spec.steps"]


def test_a_status_of_a_version_that_is_gone_counts_as_empty() -> None:
    assert status_of(rljob(status={"oldField": 1})) == status_of(rljob())
    assert status_of(rljob(status={"attempt": 2})).attempt == 2


def test_a_restarted_container_is_another_incarnation_of_the_same_pod() -> None:
    status = READY | {"containerStatuses": ray_container(restartCount=0)}
    again = READY | {
        "containerStatuses": ray_container(
            restartCount=1, lastState={"terminated": {"exitCode": 137}}
        )
    }

    first, second = (pod_of(pod("h", "c", "head", status=s)) for s in (status, again))

    assert first.ready
    assert first.incarnation != second.incarnation
    assert (first.exit_code, second.exit_code) == (None, 137)


def test_a_pod_that_is_being_deleted_is_not_ready_and_says_since_when() -> None:
    seen = pod_of(pod("h", "c", "head", status=READY, deletionTimestamp="1970-01-01T00:01:40Z"))

    assert not seen.ready
    assert seen.deleting_since == 100.0


def test_why_a_pod_does_not_run_is_told() -> None:
    refused = {"type": "PodScheduled", "status": "False", "message": "2 Insufficient NPU"}
    pull = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    usual = {"waiting": {"reason": "ContainerCreating"}}

    problems = [
        pod_of(pod("w", "c", "worker", status=status)).problem
        for status in (
            {"conditions": [refused]},
            {"containerStatuses": ray_container(state=pull)},
            {"containerStatuses": ray_container(state=usual)},
        )
    ]

    assert problems == ["2 Insufficient NPU", "ImagePullBackOff: no such image", ""]


def test_a_cluster_tells_why_it_has_no_pods() -> None:
    refused = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}

    seen = cluster_of({**child("RayCluster", "a-0"), "status": {"conditions": [refused]}})

    assert seen == Cluster(name="a-0", uid="uid-of-a-0", refusal="exceeded quota")


def test_clusters_and_pods_are_told_apart_by_the_name_in_the_status() -> None:
    cache = Cache()
    for manifest in (child("RayCluster", "spell-backward-0"), child("RayCluster", "spell-backward-1"),
                     child("RayCluster", "of-an-earlier-job", uid="another")):  # fmt: skip
        cache.put("RayCluster", manifest, observed_at=0.0)
    cache.put("Pod", pod("old", "spell-backward-0", "head", status=READY), observed_at=0.0)
    cache.put("Pod", pod("new", "spell-backward-1", "head", status=READY), observed_at=0.0)
    job = rljob(status={"rayCluster": {"name": "spell-backward-1"}})

    seen = observation_of(job, cache, RayAnswer(reached=False), None, "")

    assert seen.cluster is not None
    assert seen.cluster.name == "spell-backward-1"
    assert [cluster.name for cluster in seen.older] == ["spell-backward-0"]
    assert [p.name for p in seen.pods] == ["new"]
    assert [p.name for p in seen.older_pods] == ["old"]
    assert seen.identity.generation == 3


def test_a_job_that_requires_shared_memory_is_refused_where_pods_share_none():
    wanted = rljob(spec={**JOB["spec"], "dock": {"sharedMemory": "required"}})

    refused, problems = job_of(wanted, SETTINGS)
    allowed, _ = job_of(wanted, dataclasses.replace(SETTINGS, shared_memory="host-path"))

    assert refused is None
    assert [problem.path for problem in problems] == ["spec.dock.sharedMemory"]
    assert "sharedMemory.hostPath: true" in str(problems[0])
    assert allowed is not None


def test_two_copies_on_one_node_are_refused_on_a_cluster_with_emulated_devices_too():
    def on(nodes: int) -> dict[str, Any]:
        spec = {"accelerator": {"nodes": nodes}, "dock": {"warehouses": 2, "replicas": 2}}
        return rljob(spec=JOB["spec"] | spec)

    refused, problems = job_of(on(1), SETTINGS)
    on_one_machine, _ = job_of(on(1))
    apart, _ = job_of(on(2), SETTINGS)

    assert refused is None
    assert [problem.path for problem in problems] == ["spec.dock.replicas"]
    assert "2 warehouses are on one node and go with it; use 2 nodes or more" in str(problems[0])
    assert on_one_machine is not None
    assert apart is not None


def test_a_job_on_npus_names_its_bring_up_or_does_without():
    def on(**says: Any) -> dict[str, Any]:
        npus = {"type": "ascend910b", "devicesPerNode": 8, **says}
        return rljob(spec=JOB["spec"] | {"accelerator": npus})

    refused, problems = job_of(on(), SETTINGS)
    tested, _ = job_of(on(bringUp="lab-nodes"), SETTINGS)
    accepted, _ = job_of(on(acceptUntested=True), SETTINGS)

    assert refused is None
    assert [problem.path for problem in problems] == ["spec.accelerator.type"]
    assert "run rljob doctor --bring-up on a node of this cluster" in str(problems[0])
    assert tested is not None
    assert accepted is not None


def test_the_record_of_a_bring_up_lies_beside_the_job_in_its_head():
    job = make_job(accelerator={"type": "ascend910b", "devicesPerNode": 8, "bringUp": "lab-nodes"})

    (config, *_) = volumes(job.spec, PodTemplate(), identity(), SETTINGS, role="head")

    sources = config["projected"]["sources"]
    assert sources[0] == {"configMap": {"name": "spell-backward-rljob"}}
    assert sources[1]["configMap"]["name"] == "lab-nodes"
    assert sources[1]["configMap"]["items"] == [{"key": BRING_UP_FILE, "path": BRING_UP_FILE}]
