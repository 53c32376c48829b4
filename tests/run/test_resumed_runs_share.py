"""What may differ between a run and the one that goes on from its checkpoint."""

import json
from typing import Any

import pytest
from whole_runs import SMALL_JOB

from rljob_api.load import read_job
from rljob_api.topology import resolve
from rljob_runtime.run_request import spec_digest


def digest(**spec: Any) -> str:
    job = json.loads(json.dumps(SMALL_JOB))
    job["spec"] |= spec
    return spec_digest(resolve(read_job(job)))


def separated(update: int, rollout: int) -> dict[str, Any]:
    placement = {"mode": "separated", "updateDevices": update, "rolloutDevices": rollout}
    return {"placement": placement, "accelerator": {"devicesPerNode": 2}}


def test_a_separated_run_goes_on_with_another_number_of_rollout_devices() -> None:
    assert digest(**separated(1, 1)) == digest(**separated(1, 8))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (separated(1, 4), separated(2, 4)),
        ({"accelerator": {"devicesPerNode": 2}}, {"accelerator": {"devicesPerNode": 4}}),
        ({"accelerator": {"nodes": 1}}, {"accelerator": {"nodes": 2}}),
        ({"seed": 1}, {"seed": 2}),
    ],
)
def test_no_run_goes_on_with_other_devices_that_train_or_another_seed(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    assert digest(**before) != digest(**after)
