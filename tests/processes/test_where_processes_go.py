"""Which device has which role, and on which node each controller lives."""

import json
from collections import Counter
from typing import Any

import pytest
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.spec.infrastructure import Accelerator
from rljob_api.topology.ray_resources import device_resource
from rljob_api.topology.resolved import resolve
from rljob_runtime.processes.device_roles import device_roles, role_of
from rljob_runtime.processes.placement import controller_nodes
from rljob_runtime.processes.warehouse_homes import go_round


def job(**spec: Any):
    manifest = json.loads(json.dumps(SMALL_JOB))
    manifest["spec"] |= spec
    return resolve(read_job(manifest))


def separated(update: int = 2, rollout: int = 2, per_node: int = 2):
    return job(
        accelerator={"devicesPerNode": per_node},
        placement={"mode": "separated", "updateDevices": update, "rolloutDevices": rollout},
    )


def test_colocated_devices_have_every_role_and_separated_ones_have_one() -> None:
    colocated = device_roles(job(accelerator={"nodes": 2, "devicesPerNode": 2}))

    assert [(s.update_rank, s.generates, s.node) for s in colocated] == [
        (0, True, 0), (1, True, 0), (2, True, 1), (3, True, 1),
    ]  # fmt: skip
    assert [(s.update_rank, s.generates, s.node) for s in device_roles(separated())] == [
        (0, False, 0), (1, False, 0), (None, True, 1), (None, True, 1),
    ]  # fmt: skip


def test_a_device_beyond_the_jobs_own_generates_on_the_next_free_place() -> None:
    small = separated(update=2, rollout=1, per_node=2)

    assert len(device_roles(small)) == 3
    assert [role_of(small, rank).node for rank in (3, 4)] == [1, 2]
    assert role_of(small, 4).generates
    assert role_of(small, 4).update_rank is None


def test_a_controller_lives_on_the_node_of_its_states_first_worker() -> None:
    nodes = controller_nodes(device_roles(separated()))

    trained = ("values", "reference", "teacher", "reward-model", "update", "critic", "compare")
    assert nodes == {"generate": 1, **dict.fromkeys(trained, 0)}


@pytest.mark.parametrize("pods", [2, 3, 4, 5])
def test_two_warehouses_of_a_row_go_to_two_pods_and_every_pod_gets_as_many(pods: int) -> None:
    for each in (1, 2, 3):
        homes = go_round([f"pod-{i}" for i in range(pods)], pods * each)

        assert all(home != homes[(i + 1) % len(homes)] for i, home in enumerate(homes))
        assert Counter(homes) == {f"pod-{i}": each for i in range(pods)}


@pytest.mark.parametrize(
    ("kind", "resource"),
    [("emulated", "rljob_device"), ("ascend910b", "NPU"), ("ascend910c", "NPU")],
)
def test_device_workers_ask_ray_for_npus_on_ascend_and_for_rljobs_own_resource_elsewhere(
    kind: Any, resource: str
) -> None:
    assert device_resource(Accelerator(type=kind)) == resource
