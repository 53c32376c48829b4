"""Whether Kueue can ever admit a job, as its queues say."""

from dataclasses import replace
from typing import Any

import pytest
from clusters import NPU, cluster, found, need

from rljob_runtime.cli.doctor.cluster_facts import KueueFacts, UnreadableFact

KUEUE = {"scheduler": "kueue", "queue": "research", "priorityClass": "high"}


def local_queue(name: str = "research", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"clusterQueue": "devices", **spec}}


def cluster_queue(devices: object = 16, *, resource: str = NPU, **spec: Any) -> dict[str, Any]:
    """A ClusterQueue of two flavors, the second with half the devices."""
    flavors = [
        {"name": name, "resources": [{"name": resource, "nominalQuota": quota}]}
        for name, quota in (("a3", devices), ("a2", str(int(str(devices)) // 2)))
    ]
    group = {"coveredResources": ["cpu", "memory", resource], "flavors": flavors}
    return {"metadata": {"name": "devices"}, "spec": {"resourceGroups": [group], **spec}}


ALL = KueueFacts(
    served=True,
    local_queues=(local_queue(), local_queue("other")),
    cluster_queue=cluster_queue(),
    priority_class={"metadata": {"name": "high"}},
)


def told(queue: KueueFacts, **scheduling: Any) -> list[tuple[str, str]]:
    """What the check says of a job on two nodes with eight devices each: (status, text)."""
    asked = need(
        accelerator={"nodes": 2, "devicesPerNode": 8},
        batch={"globalBatchSize": 16},
        scheduling={**KUEUE, **scheduling},
    )
    return [(one.status, one.text) for one in found("queue", cluster(queue=queue), asked)]


def test_a_queue_with_quota_for_the_job_is_well() -> None:
    assert told(ALL) == [
        ("ok", "LocalQueue research of ClusterQueue devices"),
        (
            "ok",
            f"16 {NPU} of one flavor are asked for; ClusterQueue devices has at most: a3 16, a2 8",
        ),
    ]


def test_a_job_in_no_queue_is_told_nothing() -> None:
    assert found("queue", cluster(), need()) == []


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "no Kueue": ({"served": False}, "fail", "v1beta2 is not served"),
    "no queue": (
        {"local_queues": (local_queue("other"),)}, "fail", "no LocalQueue research; there are: other",
    ),
    "no cluster queue": ({"cluster_queue": None}, "fail", "ClusterQueue devices, which there is not"),
    "no priority": ({"priority_class": None}, "fail", "no WorkloadPriorityClass high"),
    "held": (
        {"local_queues": (local_queue(stopPolicy="Hold"),)}, "warn", "the stopPolicy of research is Hold",
    ),
    "drained": (
        {"cluster_queue": cluster_queue(stopPolicy="HoldAndDrain")}, "warn", "of devices is HoldAndDrain",
    ),
    "not active": (
        {"cluster_queue": cluster_queue() | {"status": {"conditions": [
            {"type": "Active", "status": "False", "reason": "FlavorNotFound", "message": "no flavor a3"}]}}},
        "warn", "admits nothing: no flavor a3",
    ),
    "too small": ({"cluster_queue": cluster_queue(15)}, "fail", "has at most: a3 15, a2 7"),
    "not covered": (
        {"cluster_queue": cluster_queue(resource="huawei.com/npu")}, "fail", f"covers no {NPU}, which",
    ),
    "a limit of borrowing": (
        {"cluster_queue": {"metadata": {"name": "devices"}, "spec": {"cohortName": "all", "resourceGroups": [{
            "coveredResources": ["cpu", "memory", NPU],
            "flavors": [{"name": "a3", "resources": [
                {"name": NPU, "nominalQuota": "8", "borrowingLimit": "4"}]}]}]}}},
        "fail", "has at most: a3 12",
    ),
    "no right to see priorities": (
        {"priority_class": UnreadableFact("workloadpriorityclasses is forbidden")},
        "skipped", "priorityclasses",
    ),
    "not to be seen": (
        {"cluster_queue": UnreadableFact("clusterqueues is forbidden")}, "skipped", "forbidden",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_keeps_a_job_in_its_queue_is_named(case: str) -> None:
    facts, status, text = WRONG[case]

    said = told(replace(ALL, **facts))

    assert [one for one in said if one[0] == status and text in one[1]], said


def test_a_cohort_lends_as_much_as_it_has() -> None:
    lent = told(replace(ALL, cluster_queue=cluster_queue(2, cohortName="all")))

    assert (
        "ok",
        f"16 {NPU} of one flavor are asked for; ClusterQueue devices has at most: a3 any, a2 any",
    ) in lent


def test_a_job_that_may_be_admitted_in_part_is_compared_with_no_quota() -> None:
    asked = need(
        accelerator={"devicesPerNode": 8},
        batch={"globalBatchSize": 16},
        placement={"mode": "separated", "updateDevices": 8, "rolloutDevices": 8},
        scheduling={"scheduler": "kueue", "queue": "research", "minRolloutDevices": 1},
    )
    queue = replace(ALL, cluster_queue=cluster_queue(9))

    assert [one.status for one in found("queue", cluster(queue=queue), asked)] == ["ok", "skipped"]
