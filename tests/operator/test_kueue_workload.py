"""A job as a Workload of Kueue: what it asks for, what an admission makes of its pods, what Kueue is told."""

import copy
from dataclasses import replace
from typing import Any

import pytest
from cluster_jobs import SETTINGS, TOKEN, identity, make_job

from rljob_api.spec.problems import InvalidJob
from rljob_operator.build import children
from rljob_operator.build.grants import flavors, grants
from rljob_operator.build.kueue import (
    admitted_job,
    conditions_of,
    finished_status,
    is_outdated,
    pods_status,
    quota_workers,
    released_status,
    workload,
)
from rljob_operator.reconcile.observe import installation_problems, workload_of

KUEUE = replace(SETTINGS, kueue=True)
NOW, BEFORE = "2026-02-02T00:00:00Z", "2026-01-01T00:00:00Z"
QUEUE: dict[str, Any] = {"scheduler": "kueue", "queue": "research"}
ASCEND = {"type": "ascend910b", "nodes": 2, "devicesPerNode": 8, "acceptUntested": True}
PAIRS: dict[str, Any] = {
    "placement": {"mode": "separated", "updateDevices": 1, "rolloutDevices": 4},
    "rollout": {"parallelism": {"tensor": 2}},
    "accelerator": {"devicesPerNode": 1, "nodes": None},
}
FLAVORS: dict[str, Any] = {
    "npu": {
        "spec": {
            "nodeLabels": {"chip": "910b"},
            "tolerations": [{"key": "npu", "operator": "Exists"}],
        }
    },
    "cpu": {"spec": {"nodeLabels": {"pool": "cpu"}}},
}


def elastic(rollout: int = 3, **scheduling: Any):
    """A job of a device a node, one that trains and so many that generate."""
    return make_job(
        accelerator={"devicesPerNode": 1, "nodes": None},
        placement={"mode": "separated", "updateDevices": 1, "rolloutDevices": rollout},
        batch={"globalBatchSize": 12},
        scheduling=QUEUE | scheduling,
    )


def admitted(job, *, workers: int | None = None, checks: tuple[Any, ...] = ()):
    """The job's Workload as Kueue admits it: workers to flavor npu, the others to cpu."""
    made = workload(job, identity(), KUEUE)
    assignments = [
        {
            "name": pods["name"],
            "count": workers if workers and pods["name"] == "worker" else pods["count"],
            "flavors": {"cpu": "npu" if pods["name"] == "worker" else "cpu"},
        }
        for pods in made["spec"]["podSets"]
    ]
    conditions = [
        {
            "type": kind,
            "status": "True",
            "reason": kind,
            "message": "",
            "lastTransitionTime": BEFORE,
        }
        for kind in ("QuotaReserved", "Admitted")
    ]
    made["status"] = {
        "admission": {"clusterQueue": "all", "podSetAssignments": assignments},
        "admissionChecks": list(checks),
        "conditions": conditions,
    }
    return made


def with_condition(found, kind: str, status: str, reason: str, message: str = ""):
    new = {"type": kind, "status": status, "reason": reason, "message": message}
    changed = copy.deepcopy(found)
    changed["status"]["conditions"].append(new | {"lastTransitionTime": BEFORE})
    return changed


def sets(found):
    return {pods["name"]: pods for pods in found["spec"]["podSets"]}


def test_a_workload_asks_for_every_pod_of_the_job_with_its_resources_and_is_the_jobs_own():
    job = make_job(
        accelerator=ASCEND | {"spareNodes": 1}, scheduling=QUEUE | {"priorityClass": "high"}
    )

    made = workload(job, identity(), KUEUE, priority=100)

    assert {name: pods["count"] for name, pods in sets(made).items()} == {
        "head": 1, "worker": 3, "warehouse": 3,
    }  # fmt: skip
    (container,) = sets(made)["worker"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["huawei.com/Ascend910"] == "8"
    assert made["spec"]["queueName"] == "research"
    assert made["spec"]["priority"] == 100
    assert made["spec"]["priorityClassRef"]["name"] == "high"
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == ("RLJob", True)
    assert not any("minCount" in pods for pods in sets(made).values())


def test_a_raycluster_of_a_workload_is_none_itself_and_names_no_class_in_its_pods():
    job = make_job(scheduling=QUEUE | {"priorityClass": "high"})

    own = children(job, identity(), KUEUE, TOKEN, cluster="a-0")[-1]
    of_the_cluster = children(job, identity(), SETTINGS, TOKEN, cluster="a-0")[-1]

    assert not [key for key in own["metadata"]["labels"] if "kueue" in key]
    assert of_the_cluster["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "research"
    assert "priorityClassName" not in own["spec"]["headGroupSpec"]["template"]["spec"]


def test_a_raycluster_that_is_there_keeps_its_queue_whatever_the_operators_setting_is():
    job = make_job(scheduling=QUEUE)
    for first, then in ((SETTINGS, KUEUE), (KUEUE, SETTINGS)):
        living = children(job, identity(), first, TOKEN, cluster="a-0")[-1]

        again = children(job, identity(), then, TOKEN, cluster="a-0", living=living)[-1]

        assert again["metadata"] == living["metadata"]


def test_pods_get_the_nodes_and_taints_of_their_flavors_and_what_admission_checks_add():
    update = {
        "name": "worker",
        "nodeSelector": {"request": "7"},
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
    }
    check = {"name": "autoscaler", "state": "Ready", "podSetUpdates": [update]}
    job = make_job(scheduling=QUEUE, podTemplates={"worker": {"nodeSelector": {"disk": "ssd"}}})
    found = admitted(job, checks=(check,))

    assert flavors(found) == {"npu", "cpu"}
    given = grants(found, FLAVORS)
    spec = children(job, identity(), KUEUE, TOKEN, cluster="a-0", grants=given)[-1]["spec"]

    head = spec["headGroupSpec"]["template"]
    worker, warehouse = (group["template"] for group in spec["workerGroupSpecs"])
    taint = FLAVORS["npu"]["spec"]["tolerations"][0]
    assert head["spec"]["nodeSelector"] == {"pool": "cpu"}
    assert worker["spec"]["nodeSelector"] == {"disk": "ssd", "chip": "910b", "request": "7"}
    assert [taint in t["spec"]["tolerations"] for t in (head, worker, warehouse)] == [
        False,
        True,
        True,
    ]
    assert "nodeSelector" not in warehouse["spec"]
    assert worker["metadata"]["labels"]["a"] == "b"
    assert worker["metadata"]["annotations"] == {"c": "d"}
    assert worker["metadata"]["labels"]["kueue.x-k8s.io/podset"] == "worker"
    assert "schedulingGates" not in worker["spec"]


def test_pods_whose_topology_kueue_chooses_wait_for_it_behind_its_gate():
    wish = {"kueue.x-k8s.io/podset-required-topology": "cloud/superpod"}
    job = make_job(scheduling=QUEUE, podTemplates={"worker": {"annotations": wish}})
    found = admitted(job)
    found["status"]["admission"]["podSetAssignments"][1]["topologyAssignment"] = {
        "levels": ["cloud/superpod"]
    }

    given = grants(found, FLAVORS)
    spec = children(job, identity(), KUEUE, TOKEN, cluster="a-0", grants=given)[-1]["spec"]

    assert sets(found)["worker"]["topologyRequest"] == {"required": "cloud/superpod"}
    gates = [{"name": "kueue.x-k8s.io/topology"}]
    worker = spec["workerGroupSpecs"][0]["template"]
    assert worker["spec"]["schedulingGates"] == gates
    assert worker["metadata"]["annotations"]["kueue.x-k8s.io/workload"] == "spell-backward-rljob"
    assert "schedulingGates" not in spec["headGroupSpec"]["template"]["spec"]


def test_with_a_least_number_of_devices_kueue_may_admit_as_few_workers_as_those_need():
    assert (
        sets(workload(elastic(minRolloutDevices=1), identity(), KUEUE))["worker"]["minCount"] == 2
    )
    assert "minCount" not in sets(workload(elastic(), identity(), KUEUE))["worker"]
    scaled_below = elastic(1, minRolloutDevices=2)
    assert sets(workload(scaled_below, identity(), KUEUE))["worker"]["minCount"] == 2


@pytest.mark.parametrize(("workers", "generate"), [(4, 3), (3, 2), (2, 1)])
def test_a_job_generates_with_the_devices_that_it_was_admitted_with(workers, generate):
    job = elastic(minRolloutDevices=1)

    own = admitted_job(job, admitted(job, workers=workers))

    assert own.spec.placement.rollout_devices == generate


def test_devices_that_hold_a_model_together_are_admitted_together():
    job = make_job(scheduling=QUEUE | {"minRolloutDevices": 2}, **PAIRS)

    own = admitted_job(job, admitted(job, workers=4))

    assert own.spec.placement.rollout_devices == 2


def test_a_job_that_shrank_and_grows_again_has_what_it_did_not_give_back():
    job = elastic(3)
    found = admitted(job)
    found["status"] = pods_status(found, ready=True, workers=3, timestamp=NOW)

    assert found["status"]["reclaimablePods"] == [{"name": "worker", "count": 1}]
    assert quota_workers(found) == 3
    assert admitted_job(job, found).spec.placement.rollout_devices == 2


def test_a_job_that_waits_or_holds_quota_for_all_is_as_its_spec_says():
    job = elastic()

    assert admitted_job(job, None) is job
    assert admitted_job(job, workload(job, identity(), KUEUE)) is job
    assert admitted_job(job, admitted(job)) is job


def test_a_workload_is_outdated_once_the_job_asks_for_something_else_and_not_by_what_others_write():
    job = elastic(2)
    found = admitted(job)
    found["spec"]["active"] = False
    found["spec"]["priority"] = 7

    assert not is_outdated(found, job, identity(), KUEUE)
    assert is_outdated(found, elastic(3), identity(), KUEUE)


@pytest.mark.parametrize(
    ("reason", "again"), [("Preempted", "True"), ("PodsReadyTimeout", "False")]
)
def test_an_evicted_workload_without_pods_holds_no_quota_and_says_why(reason, again):
    found = with_condition(admitted(elastic()), "Evicted", "True", reason, "for another")
    found["status"]["reclaimablePods"] = [{"name": "worker", "count": 1}]

    status = released_status(found, NOW)

    after = conditions_of({**found, "status": status})
    assert "admission" not in status
    assert "reclaimablePods" not in status
    assert {kind: after[kind]["status"] for kind in ("QuotaReserved", "Admitted", "PodsReady")} == {
        "QuotaReserved": "False", "Admitted": "False", "PodsReady": "False",
    }  # fmt: skip
    assert (after["QuotaReserved"]["message"], after["QuotaReserved"]["lastTransitionTime"]) == (
        "for another", NOW,
    )  # fmt: skip
    assert (after["Requeued"]["status"], after["Requeued"]["reason"]) == (again, reason)
    assert after["Evicted"] == conditions_of(found)["Evicted"]


def test_kueue_is_told_whether_pods_are_ready_for_the_first_time_or_again():
    found, reasons = admitted(elastic()), []
    for ready in (False, True, False, True):
        found["status"] = pods_status(found, ready=ready, workers=None, timestamp=NOW)
        told = conditions_of(found)["PodsReady"]
        reasons.append((told["status"], told["reason"]))

    assert reasons == [
        ("False", "WaitForStart"), ("True", "Started"), ("False", "WaitForRecovery"), ("True", "Recovered"),
    ]  # fmt: skip
    assert "reclaimablePods" not in found["status"]


def test_a_finished_workload_says_how_the_job_ended():
    found = admitted(elastic())

    status = finished_status(found, succeeded=False, message="the job has failed", timestamp=NOW)

    told = conditions_of({**found, "status": status})["Finished"]
    assert (told["status"], told["reason"], told["message"]) == (
        "True",
        "Failed",
        "the job has failed",
    )


def test_why_a_job_waits_is_told_in_kueues_words():
    job = elastic()
    plain = workload(job, identity(), KUEUE)
    refused = {
        "type": "QuotaReserved",
        "status": "False",
        "reason": "Pending",
        "message": "insufficient quota",
    }
    held = admitted(
        job, checks=({"name": "autoscaler", "state": "Pending", "message": "asks for nodes"},)
    )
    inactive = copy.deepcopy(plain)
    inactive["spec"]["active"] = False

    def told(found):
        return workload_of(found, requested=4, outdated=False).message

    assert told(plain) == "Kueue has not looked at it yet"
    assert told({**plain, "status": {"conditions": [refused]}}) == "insufficient quota"
    assert told(held) == "autoscaler: asks for nodes"
    assert told(inactive) == "it is deactivated; set spec.active of the Workload to true"


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"scheduling": {"minRolloutDevices": 1}}, "only kueue admits a part of a job"),
        ({"scheduling": QUEUE | {"minRolloutDevices": 1}}, "cannot become fewer"),
    ],
)
def test_a_least_number_of_devices_is_for_elastic_jobs_in_kueues_queues(spec, told):
    with pytest.raises(InvalidJob, match=told):
        make_job(**spec)


def test_a_least_number_that_the_job_cannot_have_is_refused_before_it_waits():
    job = make_job(scheduling=QUEUE | {"minRolloutDevices": 3}, **PAIRS)

    (problem,) = installation_problems(job, KUEUE)

    assert problem.path == "spec.scheduling.minRolloutDevices"
    assert "use 2 or 4" in problem.message
