"""Volcano's PodGroup: what a job cannot begin without, and which pods are of it."""

from dataclasses import replace
from typing import Any

import pytest
from cluster_jobs import SETTINGS, TOKEN, identity, make_job

from rljob_operator.build import children

VOLCANO = replace(SETTINGS, volcano=True)
QUEUE = {"scheduler": "volcano", "queue": "research", "priorityClass": "high"}
ASCEND = {"type": "ascend910b", "nodes": 2, "devicesPerNode": 8, "acceptUntested": True}
KUBERAYS = {"volcano.sh/queue-name", "ray.io/priority-class-name"}


def built(settings=VOLCANO, *, released=False, living=None, **spec):
    """The PodGroup, None without one, and the RayCluster."""
    given: dict[str, Any] = {"scheduling": QUEUE, "accelerator": ASCEND} | spec
    job = make_job(**given)
    made = children(
        job, identity(), settings, TOKEN, cluster="words-1", released=released, living=living
    )
    return next((m for m in made if m["kind"] == "PodGroup"), None), made[-1]


def templates(cluster):
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    return [group["template"] for group in groups]


def test_a_group_waits_for_all_pods_that_the_job_needs_in_its_queue_and_not_for_spare_ones():
    own = {"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}
    group, cluster = built(
        accelerator=ASCEND | {"spareNodes": 1}, podTemplates={"head": {"resources": own}}
    )

    assert group["metadata"]["name"] == cluster["metadata"]["name"]
    assert group["spec"]["minTaskMember"] == {"head": 1, "worker": 2, "warehouse": 2}
    assert group["spec"]["minMember"] == 5
    assert (group["spec"]["queue"], group["spec"]["priorityClassName"]) == ("research", "high")
    amounts = group["spec"]["minResources"]
    assert amounts["huawei.com/Ascend910"] == "16"
    assert amounts["cpu"] == "137.5"  # 1.5 + 2 × 64 + 2 × 4
    (owner,) = group["metadata"]["ownerReferences"]
    assert owner["kind"] == "RLJob"


def test_every_pod_is_of_the_group_and_kuberay_is_asked_for_none():
    _, cluster = built()

    assert not KUBERAYS & cluster["metadata"]["labels"].keys()
    told = [template["metadata"]["annotations"] for template in templates(cluster)]
    assert {a["scheduling.k8s.io/group-name"] for a in told} == {"words-1"}
    assert [a["volcano.sh/task-spec"] for a in told] == ["head", "worker", "warehouse"]
    assert {template["spec"]["schedulerName"] for template in templates(cluster)} == {"volcano"}


def test_after_the_end_the_group_is_the_head_alone():
    group, _ = built(released=True)

    assert (group["spec"]["minMember"], group["spec"]["minTaskMember"]) == (1, {"head": 1})
    assert "huawei.com/Ascend910" not in group["spec"]["minResources"]


def test_without_the_setting_kuberay_makes_the_group():
    group, cluster = built(SETTINGS)

    assert group is None
    assert cluster["metadata"]["labels"].keys() >= KUBERAYS


@pytest.mark.parametrize(("first", "then"), [(SETTINGS, VOLCANO), (VOLCANO, SETTINGS)])
def test_pods_that_are_there_stay_in_the_group_that_they_are_in(first, then):
    made, living = built(first)

    group, cluster = built(then, living=living)

    assert cluster["metadata"] == living["metadata"]
    assert templates(cluster) == templates(living)
    assert group is None or made == group
    assert (group is not None) == (first is then is VOLCANO)


def test_a_group_that_the_operator_made_stays_up_to_date_with_its_cluster():
    made, living = built()

    group, _ = built(living=living)

    assert group == made
