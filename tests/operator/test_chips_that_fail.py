"""A job whose chips warn or stop: what is told, when its pods go, and where the next ones may not."""

from dataclasses import replace
from typing import Any

import pytest
from cluster_jobs import JOB, SETTINGS, TOKEN, identity, make_job

from rljob_api.check.load import read_job
from rljob_api.spec.status import LastCheckpoint, Progress, RayClusterStatus, RLJobStatus
from rljob_operator.build import children
from rljob_operator.build.identity import JobIdentity
from rljob_operator.decide.decide import decide
from rljob_operator.decide.draft import condition, rfc3339
from rljob_operator.decide.model import (
    AskCheckpoint,
    Cluster,
    DeletePod,
    MakeChildren,
    Observation,
    Pod,
    RayAnswer,
)
from rljob_operator.driver.ray_jobs import RayJob, RayJobStatus
from rljob_operator.reconcile.observe import cluster_of, pod_of
from rljob_operator.watch.fault_reports import ChipFault

NOW = 1_000_000.0
CHIP = ChipFault(
    node="node-1", chip="Ascend910-3", level="SeparateNPU", code="80E18401", since=NOW - 1
)
WARNS = replace(CHIP, level="PreSeparateNPU")
AVOIDS = MakeChildren(cluster="job-0", avoid=("node-1",))


def running(*faults: ChipFault, step: int = 7, saved: int = 5, **more: Any) -> Observation:
    """A job of two worker pods, each on a node of its own, that has trained some steps."""
    status = RLJobStatus(
        observed_generation=1,
        start_time=rfc3339(NOW - 90),
        attempt_time=rfc3339(NOW - 90),
        attempt=0,
        restarts=0,
        ray_cluster=RayClusterStatus(name="job-0", uid="c", submission_id="s", head="head/0"),
    )
    seen = Observation(
        identity=JobIdentity(namespace="team", name="job", uid="0123456789", generation=1),
        created=NOW - 100,
        deleting=False,
        spec=make_job(nodes=2).spec,
        problems=(),
        status=status,
        cluster=Cluster(name="job-0", uid="c", workers=2),
        pods=(
            pod("head", node="node-1"),
            pod("w-1", node="node-1"),
            pod("w-2", node="node-2"),
            pod("warehouse", node="node-1"),
        ),
        ray=RayAnswer(reached=True, job=RayJob(status=RayJobStatus.RUNNING)),
        progress=Progress(step=step, total_steps=10),
        checkpoint=LastCheckpoint(step=saved, path="/c", time=rfc3339(NOW)),
        faults=faults,
        faulty_nodes=tuple(sorted({fault.node for fault in faults})),
    )
    return replace(seen, **more)


def pod(name: str, *, node: str, **more: Any) -> Pod:
    role = name if name in ("head", "warehouse") else "worker"
    usual = {"ready": True, "incarnation": f"{name}/0", "created": NOW - 80}
    return Pod(name=name, uid=f"uid-{name}", role=role, node=node, **(usual | more))  # type: ignore[arg-type]


def healthy(decision: Any) -> Any:
    return condition(decision.status, "AcceleratorHealthy")


def after(seen: Observation, **more: Any) -> Observation:
    """The same world once the decision's status is written, changed."""
    return replace(seen, status=decide(seen, NOW).status, **more)


def test_a_chip_that_stops_takes_its_pod_with_it_at_once() -> None:
    decision = decide(running(CHIP), NOW)

    assert decision.actions == (AVOIDS, DeletePod(pod="w-1"))
    told = healthy(decision)
    assert (told.status, told.reason) == ("False", "ChipBroken")
    assert told.message == (
        "chip Ascend910-3 of node node-1 reports SeparateNPU (80E18401): its pod w-1 is replaced"
    )
    (event,) = [event for event in decision.events if event.reason == "ChipBroken"]
    assert event.warning
    assert event.message == told.message
    assert decision.status.phase == "Running"


def test_a_chip_that_warns_waits_for_a_checkpoint_of_all_that_was_done() -> None:
    seen = running(WARNS)

    asked = decide(seen, NOW)
    waiting = decide(after(seen, progress=Progress(step=9, total_steps=10)), NOW + 5)
    saved = LastCheckpoint(step=8, path="/c", time=rfc3339(NOW))
    moved = decide(after(seen, checkpoint=saved), NOW + 10)

    assert asked.actions == waiting.actions == (AskCheckpoint(),)
    told = healthy(asked)
    assert (told.status, told.reason) == ("False", "ChipWarns")
    assert told.message.endswith("its pod w-1 is replaced after a checkpoint of step 7 or later")
    assert moved.actions == (AVOIDS, DeletePod(pod="w-1"))
    assert [event.reason for event in (*waiting.events, *moved.events)] == []


def test_before_the_driver_runs_nothing_is_to_be_saved() -> None:
    starting = running(WARNS, ray=RayAnswer(reached=False), progress=None, checkpoint=None)
    assert starting.status.ray_cluster is not None
    named = starting.status.ray_cluster.model_copy(update={"submission_id": None, "head": None})
    starting = replace(starting, status=starting.status.model_copy(update={"ray_cluster": named}))

    assert DeletePod(pod="w-1") in decide(starting, NOW).actions


def test_the_condition_comes_back_once_all_pods_are_there_again() -> None:
    seen = running(CHIP)
    going = after(
        seen,
        pods=(
            *(p for p in seen.pods if p.name != "w-1"),
            pod("w-1", node="node-1", ready=False, deleting_since=NOW),
        ),
    )
    gone = after(going, pods=tuple(p for p in seen.pods if p.name != "w-1"))
    again = after(gone, pods=(*gone.pods, pod("w-3", node="node-3", created=NOW + 9)))

    assert decide(going, NOW + 5).actions == decide(gone, NOW + 8).actions == ()
    assert healthy(decide(going, NOW + 5)).message.endswith("its pod w-1 is being replaced")
    assert healthy(decide(gone, NOW + 8)).message == "1 of 2 worker pods are ready, off node-1"
    done = decide(again, NOW + 20)
    assert healthy(done).status == "True"
    assert [event.reason for event in done.events] == ["ChipsHealthy"]
    assert not done.events[0].warning


def test_a_pod_that_comes_back_to_the_node_stays() -> None:
    seen = running(CHIP)
    pods = (*(p for p in seen.pods if p.name != "w-1"), pod("w-3", node="node-1", created=NOW + 9))

    back = decide(after(seen, pods=pods), NOW + 20)

    assert back.actions == ()
    assert healthy(back).status == "True"
    assert len(back.status.faulty_chips) == 1  # remembered for as long as it is reported


def test_a_chip_that_recovers_is_forgotten_and_may_fail_again() -> None:
    seen = running(WARNS)

    recovered = after(seen, faults=(), faulty_nodes=())
    again = decide(after(recovered, faults=(CHIP,), faulty_nodes=("node-1",)), NOW + 30)

    assert healthy(decide(recovered, NOW + 5)).status == "True"
    assert decide(recovered, NOW + 5).status.faulty_chips == []
    assert again.actions == (AVOIDS, DeletePod(pod="w-1"))


def test_another_level_that_means_the_same_is_told_and_does_nothing_more() -> None:
    seen = running(CHIP)
    pods = (*(p for p in seen.pods if p.name != "w-1"), pod("w-3", node="node-1", created=NOW + 9))

    changed = decide(after(seen, pods=pods, faults=(replace(CHIP, level="RestartNPU"),)), NOW + 20)

    (chip,) = changed.status.faulty_chips
    assert (chip.level, chip.pod) == ("RestartNPU", "uid-w-1")
    assert changed.actions == ()


def test_a_warning_that_becomes_worse_waits_no_longer() -> None:
    worse = decide(after(running(WARNS), faults=(CHIP,)), NOW + 5)

    assert DeletePod(pod="w-1") in worse.actions
    assert AskCheckpoint() not in worse.actions
    assert [event.reason for event in worse.events if event.warning] == ["ChipBroken"]


@pytest.mark.parametrize(
    ("has", "created", "goes"),
    [
        (("Ascend910-3", "Ascend910-4"), NOW, True),
        (("Ascend910-0",), NOW - 80, False),
        ((), NOW - 80, True),  # nobody says which it has: it was there before the chip failed
        ((), NOW, False),  # the kubelet gives no broken chip to a new pod
    ],
)
def test_only_a_pod_that_has_the_chip_goes(
    has: tuple[str, ...], created: float, goes: bool
) -> None:
    seen = running(CHIP)
    worker = pod("w-1", node="node-1", chips=has, created=created)

    decision = decide(replace(seen, pods=(seen.pods[0], worker, *seen.pods[2:])), NOW)

    assert (DeletePod(pod="w-1") in decision.actions) is goes
    assert (healthy(decision).status == "False") is goes


@pytest.mark.parametrize(("what", "who"), [("node", ""), ("switch", "switch of ")])
def test_a_fault_of_a_whole_node_takes_all_pods_that_were_there_with_it(
    what: str, who: str
) -> None:
    fault = replace(CHIP, chip=what, level="SeparateFault")
    first = pod("w-1", node="node-1", chips=("Ascend910-0",))
    second, newer = replace(first, name="w-3", uid="3"), pod("w-4", node="node-1", created=NOW + 9)
    seen = running(fault)
    seen = replace(seen, pods=(seen.pods[0], first, second, *seen.pods[2:]))

    decision = decide(seen, NOW)
    back = decide(after(seen, pods=(seen.pods[0], newer, *seen.pods[3:])), NOW + 20)

    assert decision.actions == (AVOIDS, DeletePod(pod="w-1"), DeletePod(pod="w-3"))
    assert healthy(decision).message.startswith(f"{who}node node-1 reports SeparateFault")
    assert back.actions == ()


def test_of_two_pods_on_a_node_the_one_that_has_the_chip_goes() -> None:
    seen = running(CHIP)
    has = pod("w-1", node="node-1", chips=("Ascend910-3",))
    other = pod("w-3", node="node-1", chips=("Ascend910-4",))

    for both in ((has, other), (other, has)):
        decision = decide(replace(seen, pods=(seen.pods[0], *both, *seen.pods[2:])), NOW)

        assert decision.actions == (AVOIDS, DeletePod(pod="w-1"))


def test_a_template_that_keeps_off_the_node_already_is_not_written_again() -> None:
    cluster = Cluster(name="job-0", uid="c", workers=2, avoided=("node-1", "node-9"))

    assert decide(running(CHIP, cluster=cluster), NOW).actions == (DeletePod(pod="w-1"),)


def test_a_new_cluster_keeps_off_every_node_with_such_a_chip() -> None:
    seen = running(CHIP, cluster=None, pods=(), ray=RayAnswer(reached=False))
    seen = replace(seen, status=RLJobStatus(), faulty_nodes=("node-1", "node-8"))

    assert decide(seen, NOW).actions == (MakeChildren(cluster="job-0", avoid=("node-1", "node-8")),)


def test_an_attempt_that_a_chip_ended_counts_against_nothing() -> None:
    failed = RayAnswer(reached=True, job=RayJob(status=RayJobStatus.FAILED, exit_code=1))

    ended = decide(after(running(CHIP), ray=failed), NOW + 5)
    another = decide(after(running(), ray=failed), NOW + 5)

    assert (ended.status.attempt, ended.status.restarts) == (1, 0)
    assert (another.status.attempt, another.status.restarts) == (1, 1)


def test_where_nobody_reads_reports_nothing_is_said_of_chips() -> None:
    assert healthy(decide(running(faults=None), NOW)) is None
    assert healthy(decide(running(), NOW)).status == "True"
    assert not any(event.reason == "ChipsHealthy" for event in decide(running(), NOW).events)


def test_deciding_again_about_an_unchanged_world_changes_nothing() -> None:
    for seen in (running(), running(CHIP), running(WARNS)):
        settled = after(after(seen))

        assert decide(settled, NOW).status == settled.status
        assert decide(settled, NOW).events == ()


def test_a_worker_pod_keeps_off_nodes_and_the_cluster_says_which() -> None:
    avoid = ("node-1", "node-2")
    made = children(read_job(JOB), identity(), SETTINGS, TOKEN, cluster="job-0", avoid=avoid)[-1]

    templates = {g["groupName"]: g["template"] for g in made["spec"]["workerGroupSpecs"]}
    affinity = templates["worker"]["spec"]["affinity"]["nodeAffinity"]
    (wish,) = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert wish["preference"]["matchFields"] == [
        {"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in avoid
    ]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in affinity
    assert "nodeAffinity" not in templates["warehouse"]["spec"]["affinity"]  # beside a worker
    made["metadata"]["uid"] = "c"
    assert cluster_of(made).avoided == avoid


def test_the_device_plugin_says_which_chips_a_pod_has() -> None:
    seen = pod_of(
        {
            "metadata": {
                "name": "w",
                "uid": "u",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {"huawei.com/AscendReal": "Ascend910-0,Ascend910-1"},
            }
        }
    )

    assert seen.chips == ("Ascend910-0", "Ascend910-1")
    assert seen.created == 1767225600.0
