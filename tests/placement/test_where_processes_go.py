"""Which device has which role, and on which node each controller lives."""

import json
from typing import Any

import pytest
from whole_runs import SMALL_JOB

from rljob_api.infrastructure import Accelerator
from rljob_api.load import read_job
from rljob_api.ray_resources import device_resource
from rljob_runtime.placement import controller_nodes, make_seats


def seats(**spec: Any):
    job = json.loads(json.dumps(SMALL_JOB))
    job["spec"] |= spec
    return make_seats(read_job(job))


def test_colocated_devices_have_every_role_and_separated_ones_have_one() -> None:
    colocated = seats(accelerator={"nodes": 2, "devicesPerNode": 2})
    separated = seats(
        accelerator={"nodes": 2, "devicesPerNode": 2},
        placement={"mode": "separated", "updateDevices": 2, "rolloutDevices": 2},
    )

    assert [(s.update_rank, s.rollout_rank, s.node) for s in colocated] == [
        (0, 0, 0), (1, 1, 0), (2, 2, 1), (3, 3, 1),
    ]  # fmt: skip
    assert [(s.update_rank, s.rollout_rank, s.node) for s in separated] == [
        (0, None, 0), (1, None, 0), (None, 0, 1), (None, 1, 1),
    ]  # fmt: skip


def test_a_controller_lives_on_the_node_of_its_states_first_worker() -> None:
    separated = seats(
        accelerator={"nodes": 2, "devicesPerNode": 2},
        placement={"mode": "separated", "updateDevices": 2, "rolloutDevices": 2},
    )

    assert controller_nodes(separated) == {"generate": 1, "reference": 0, "update": 0}


@pytest.mark.parametrize(
    ("kind", "resource"),
    [("emulated", "rljob_device"), ("ascend910b", "NPU"), ("ascend910c", "NPU")],
)
def test_device_workers_ask_ray_for_npus_on_ascend_and_for_rljobs_own_resource_elsewhere(
    kind: Any, resource: str
) -> None:
    assert device_resource(Accelerator(type=kind)) == resource
