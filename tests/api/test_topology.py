"""Devices, meshes, pods, and the defaults that follow from other fields."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.check.load import read_job
from rljob_api.spec.engines import MAX_STALENESS
from rljob_api.spec.section import parse_quantity
from rljob_api.topology.devices import Mesh, Pods, Roles, pods, roles, rollout_mesh, update_mesh
from rljob_api.topology.resolved import ResolvedJob, resolve
from rljob_api.topology.second_copies import second_copy_names

DEVICES = "spec.accelerator.devicesPerNode"


def test_more_devices_alone_mean_data_parallelism(job):
    spec = resolve(job({DEVICES: 2, "spec.accelerator.nodes": 2})).spec

    assert (spec.update.parallelism.data, spec.rollout.parallelism.data) == (4, 4)
    assert spec.batch.mini_batch_size == 16
    assert spec.batch.micro_batch_size == 4
    assert spec.dock.warehouses == 2


def test_data_takes_the_devices_that_other_degrees_leave(job):
    changes = {
        DEVICES: 16,
        "spec.update.parallelism": {"tensor": 2, "pipeline": 2, "context": 2},
        "spec.rollout.parallelism": {"tensor": 4},
    }

    spec = resolve(job(changes)).spec

    assert spec.update.parallelism.data == 2
    assert spec.rollout.parallelism.data == 4
    assert update_mesh(spec.update.parallelism).size == 16
    assert rollout_mesh(spec.rollout.parallelism).size == 16


@pytest.mark.parametrize("placement", [{"updateDevices": 1}, {"rolloutDevices": 3}])
def test_a_role_left_open_gets_the_other_devices(job, placement):
    changes = {
        DEVICES: 4,
        "spec.placement": {"mode": "separated", **placement},
        "spec.batch.globalBatchSize": 12,
    }

    spec = resolve(job(changes)).spec

    assert roles(spec.placement, spec.accelerator) == Roles(update=1, rollout=3)
    assert (spec.placement.update_devices, spec.placement.rollout_devices) == (1, 3)
    assert (spec.update.parallelism.data, spec.rollout.parallelism.data) == (1, 3)


@pytest.mark.parametrize(
    ("accelerator", "memory"),
    [
        ({"type": "emulated"}, None),
        ({"type": "ascend910b"}, "64Gi"),
        ({"type": "ascend910c", "memory": "128Gi"}, "128Gi"),
    ],
)
def test_memory_is_unlimited_on_emulated_devices_alone(job, accelerator, memory):
    assert resolve(job({"spec.accelerator": accelerator})).spec.accelerator.memory == memory


def test_a_node_has_a_worker_and_a_warehouse_unless_told_otherwise(job):
    nodes = {"spec.accelerator.nodes": 4}

    assert pods(job(nodes).spec) == Pods(head=1, worker=4, warehouse=4)
    assert pods(job(nodes | {"spec.dock": {"warehouses": 2}}).spec).warehouse == 2


@pytest.mark.parametrize(
    ("flow", "stale", "ahead"),
    [
        ({}, 0, 0),
        ({"partialRollout": {"budgetTokens": 20}}, 4, 0),
        ({"partialRollout": {"budgetTokens": 20}, "mode": "sync", "maxStaleness": 2}, 2, 0),
        ({"partialRollout": {"budgetTokens": 20}, "mode": "async"}, 5, 1),
        ({"partialRollout": {"budgetTokens": 20}, "mode": "async", "maxStaleness": 9}, 9, 1),
        ({"mode": "async", "maxStaleness": 9}, 9, 9),
    ],
)
def test_a_sample_may_be_as_old_as_its_longest_response_takes_unless_told_otherwise(
    job, flow, stale, ahead
):
    separated = {"mode": "separated", "updateDevices": 2, "rolloutDevices": 2}
    changes = {"spec.placement": separated, DEVICES: 4} if flow.get("mode") == "async" else {}

    resolved = resolve(job({"spec.flow": flow, **changes})).spec.flow

    assert (resolved.most_stale, resolved.most_ahead) == (stale, ahead)
    assert resolved.off_policy == (stale > 0)


def test_no_default_bound_is_beyond_what_may_be_said(job):
    wordy = job(
        {"spec.flow": {"partialRollout": {"budgetTokens": 1}}, "spec.batch.maxResponseLength": 900}
    )

    assert resolve(wordy).spec.flow.most_stale == MAX_STALENESS


@pytest.mark.parametrize(
    ("changes", "strategy"),
    [
        ({}, "allgather-swap"),
        ({"spec.rollout": {"engine": "vllm"}}, "allgather-swap"),
        ({"spec.rollout": {"engine": "acme.sampler"}}, "stream"),
        ({"spec.update": {"engine": "mindspeed"}}, "allgather-swap"),
        ({"spec.update": {"engine": "acme.trainer"}}, "stream"),
        ({"spec.rollout": {"quantization": "int8"}}, "stream"),
        ({DEVICES: 2, "spec.placement": {"mode": "separated", "updateDevices": 1}}, "allgather"),
        ({"spec.resharding": {"strategy": "allgather"}}, "allgather"),
        ({"spec.resharding": {"strategy": "stream"}}, "stream"),
    ],
)
def test_weights_go_by_a_plan_where_processes_hold_them_unless_the_job_says_otherwise(
    job, changes, strategy
):
    assert resolve(job(changes)).spec.resharding.strategy == strategy


def test_second_copies_are_of_both_models_that_are_trained(job):
    changes = {
        "spec.accelerator.devicesPerNode": 2,
        "spec.algorithm": {"name": "ppo"},
        "spec.update": {"redundancy": "peer", "parallelism": {"zero": 1}},
        "spec.critic": {"parallelism": {"zero": 3}},
    }

    found = second_copy_names(resolve(job(changes)).spec)

    assert found == ["policy/state", "critic/weights", "critic/state"]
    changes["spec.update"] = {"parallelism": {"zero": 1}}
    assert second_copy_names(resolve(job(changes)).spec) == []


def test_a_resolved_job_is_what_its_own_manifest_says(job):
    resolved = resolve(job({DEVICES: 2, "spec.batch.miniBatchSize": 8}))

    manifest = resolved.model_dump(mode="json", by_alias=True, exclude_none=True)

    assert ResolvedJob.model_validate(manifest) == resolved == resolve(read_job(manifest))
    assert resolve(resolved) == resolved


degrees = st.integers(1, 5)


@given(sizes=st.tuples(degrees, degrees, degrees))
def test_a_mesh_numbers_its_ranks_with_the_last_axis_fastest(sizes):
    mesh = Mesh(axes=tuple(zip(("pipeline", "data", "tensor"), sizes, strict=True)))
    pipeline, data, tensor = sizes

    places = [mesh.coordinates(rank) for rank in range(mesh.size)]

    assert places == [
        {"pipeline": p, "data": d, "tensor": t}
        for p in range(pipeline)
        for d in range(data)
        for t in range(tensor)
    ]
    for axis in ("pipeline", "data", "tensor"):
        groups = {tuple(mesh.group(axis, rank)) for rank in range(mesh.size)}
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
        for group in groups:
            others = [{**places[rank], axis: None} for rank in group]
            assert [places[rank][axis] for rank in group] == list(range(len(group)))
            assert all(other == others[0] for other in others)


@pytest.mark.parametrize(
    ("text", "size"), [("5", 5), ("1k", 1000), ("1.5Ki", 1536), ("2Gi", 2**31), ("3T", 3 * 10**12)]
)
def test_quantities_are_those_of_kubernetes(text, size):
    assert parse_quantity(text) == size
