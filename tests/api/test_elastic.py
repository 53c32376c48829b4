"""Another number of rollout devices: pods, who leaves, what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.check.load import read_job
from rljob_api.check.scale_rules import scale_problems
from rljob_api.topology.devices import Pods, Roles, num_warehouses, pods, roles
from rljob_api.topology.elastic import (
    ReleasedResources,
    device_notes,
    released,
    scaled,
    worker_pods,
)
from rljob_api.topology.resolved import resolve

DEVICES = "spec.accelerator.devicesPerNode"


@pytest.fixture
def separated(job):
    """separated(update=2, rollout=4, per_node=2): a job with devices of each role."""

    def build(*, update=2, rollout=4, per_node=2, **changes):
        placement = {"mode": "separated", "updateDevices": update, "rolloutDevices": rollout}
        spec = {f"spec.{path.replace('__', '.')}": value for path, value in changes.items()}
        return job({"spec.placement": placement, DEVICES: per_node, **spec})

    return build


def test_the_roles_devices_decide_how_many_nodes_there_are(separated):
    grown = separated(update=8, rollout=16, per_node=8, accelerator__nodes=2)

    assert pods(grown.spec) == Pods(head=1, worker=3, warehouse=1)
    assert resolve(grown).spec.accelerator.nodes == 3
    assert [worker_pods(grown, rollout) for rollout in (1, 8, 16)] == [2, 2, 3]


def test_scaling_changes_neither_the_devices_that_train_nor_the_warehouses(separated):
    job = separated(update=4, rollout=4, per_node=2, dock__warehouses=3)

    sizes = [scaled(job, rollout).spec for rollout in (1, 2, 4, 8, 16)]

    assert {roles(s.placement, s.accelerator).update for s in sizes} == {4}
    assert {(num_warehouses(s), pods(s).warehouse) for s in sizes} == {(3, 2)}
    assert num_warehouses(separated(update=4, rollout=1, per_node=3).spec) == 2


def test_the_last_devices_leave_first_and_their_pods_with_them(separated):
    job = separated(update=2, rollout=4, per_node=2)

    assert released(job, 2) == ReleasedResources(devices=(5, 4), nodes=(2,))
    assert released(job, 1) == ReleasedResources(devices=(5, 4, 3), nodes=(2,))
    assert released(job, 8) == ReleasedResources(devices=(), nodes=())


@given(
    update=st.integers(1, 9), before=st.integers(1, 9), after=st.integers(1, 9),
    per_node=st.integers(1, 4),
)  # fmt: skip
def test_a_pod_is_released_exactly_when_its_last_device_is(update, before, after, per_node):
    data = {"reasoningGym": {"dataset": "spell_backward"}}
    batch = {
        "globalBatchSize": 2520,
        "samplesPerPrompt": 2,
        "maxPromptLength": 8,
        "maxResponseLength": 8,
    }
    spec = {
        "steps": 1,
        "model": {"builtin": "tiny"},
        "data": data,
        "rewards": [{"name": "exact", "type": "dataset"}],
        "batch": batch,
        "accelerator": {"devicesPerNode": per_node},
        "placement": {"mode": "separated", "updateDevices": update, "rolloutDevices": before},
    }
    kind = {"apiVersion": "rljob.io/v1alpha1", "kind": "RLJob", "metadata": {"name": "j"}}
    job = read_job({**kind, "spec": spec})

    left = released(job, after)

    devices = set(range(update + before)) - set(left.devices)
    assert devices == set(range(update + min(before, after)))
    there = {device // per_node for device in range(update + before)}
    assert set(left.nodes) == there - {device // per_node for device in devices}


def test_a_resolved_job_scales_like_the_job_that_was_written(separated):
    job = separated(update=2, rollout=4)

    assert resolve(scaled(resolve(job), 8)) == resolve(scaled(job, 8))
    assert resolve(scaled(job, 8)).spec.rollout.parallelism.data == 8
    assert scale_problems(resolve(job), 8) == []


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        (0, "is 0; must be at least 1"),
        (3, "16 prompts cannot be shared evenly by 3 rollout replicas"),
    ],
)
def test_numbers_that_no_job_may_have_are_refused(separated, rollout, message):
    (problem,) = scale_problems(separated(update=2, rollout=4), rollout)

    assert message in problem.message


@pytest.mark.parametrize(
    ("degrees", "rollout", "message"),
    [
        ({"tensor": 2}, 5, "is 5, but 2 devices hold a model together"),
        ({"tensor": 2}, 5, "(spec.rollout.parallelism); use 4 or 6"),
        ({"pipeline": 2, "expert": 2}, 2, "is 2, but 4 devices hold a model together"),
        ({"pipeline": 2, "expert": 2}, 2, "(spec.rollout.parallelism); use 4"),
    ],
)
def test_parts_of_a_shared_model_are_refused(separated, degrees, rollout, message):
    job = separated(update=2, rollout=4, rollout__parallelism=degrees)

    (problem,) = scale_problems(job, rollout)

    assert problem.path == "spec.placement.rolloutDevices"
    assert message in problem.message
    assert scale_problems(job, 8) == []


def test_ascend_pods_of_several_nodes_are_whole_nodes_after_scaling_too(separated):
    job = separated(update=2, rollout=2, per_node=4, accelerator__type="ascend910b")

    (problem,) = scale_problems(job, 4)

    assert problem.path == "spec.accelerator.devicesPerNode"
    assert "does not give to a pod of a job on several nodes" in problem.message


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"mode": "colocated"}, "cannot change with mode colocated"),
        ({"mode": "separated", "rolloutDevices": 2}, "cannot change without updateDevices"),
    ],
)
def test_jobs_whose_devices_are_bound_are_not_scaled(job, placement, message):
    (problem,) = scale_problems(job({"spec.placement": placement, DEVICES: 4}), 2)

    assert problem.path == "spec.placement.rolloutDevices"
    assert message in problem.message


def test_a_job_that_names_the_trainers_alone_may_be_scaled_as_well(job):
    open_job = job(
        {
            "spec.placement": {"mode": "separated", "updateDevices": 2},
            "spec.accelerator": {"nodes": 3, "devicesPerNode": 2},
        }
    )

    assert roles(open_job.spec.placement, open_job.spec.accelerator) == Roles(update=2, rollout=4)
    assert pods(open_job.spec) == Pods(head=1, worker=3, warehouse=1)
    assert worker_pods(open_job, 8) == 5


def test_what_is_not_read_and_devices_without_work_are_noted(separated, job):
    notes = [*device_notes(separated(update=1, rollout=2, accelerator__nodes=4).spec)]

    assert notes == [
        "spec.accelerator.nodes 4 is not read: updateDevices 1 + rolloutDevices 2 fill 2 nodes of "
        "2 devices",
        "1 of 2 devices of the last node have no work",
    ]
    assert [*device_notes(separated(update=2, rollout=2).spec)] == []
    assert [*device_notes(job({"spec.accelerator.nodes": 2}).spec)] == []
