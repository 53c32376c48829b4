"""What may differ between a run and the one that goes on from its checkpoint."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import ResolvedJob, resolve
from rljob_runtime.errors import CheckpointError
from rljob_runtime.record.checkpoint import RunState, check_resumes, read_state
from rljob_runtime.run.run_request import course_digest, earlier_digests, spec_digest


def digest(**spec: Any) -> str:
    return spec_digest(with_spec(**spec))


def with_spec(**spec: Any) -> ResolvedJob:
    job = json.loads(json.dumps(SMALL_JOB))
    job["spec"] |= spec
    return resolve(read_job(job))


def separated(update: int, rollout: int) -> dict[str, Any]:
    placement = {"mode": "separated", "updateDevices": update, "rolloutDevices": rollout}
    return {"placement": placement, "accelerator": {"devicesPerNode": 2}}


def test_a_separated_run_goes_on_with_another_number_of_rollout_devices() -> None:
    assert digest(**separated(1, 1)) == digest(**separated(1, 8))


def test_a_run_goes_on_with_other_steps_recorded() -> None:
    assert digest() == digest(profile={"steps": [2]})


@pytest.mark.parametrize("saving", [{"recompute": "full"}, {"offload": "optimizer"}])
def test_a_run_goes_on_with_other_ways_to_save_memory(saving: dict[str, str]) -> None:
    assert digest() == digest(update=SMALL_JOB["spec"]["update"] | saving)


def test_a_run_goes_on_with_other_spare_nodes() -> None:
    devices = SMALL_JOB["spec"]["accelerator"]
    assert digest() == digest(accelerator=devices | {"spareNodes": 2})


def test_a_run_goes_on_with_other_second_copies() -> None:
    shared = SMALL_JOB["spec"]["update"] | {"parallelism": {"zero": 1}}
    assert digest(update=shared) == digest(update=shared | {"redundancy": "host"})


@pytest.mark.parametrize(
    "layout",
    [
        separated(1, 4),
        {"accelerator": {"devicesPerNode": 2}},
        {
            "accelerator": {"devicesPerNode": 2},
            "update": SMALL_JOB["spec"]["update"] | {"parallelism": {"tensor": 2}},
        },
    ],
)
def test_a_run_goes_on_with_other_devices_and_degrees_and_no_other_course(
    layout: dict[str, Any],
) -> None:
    assert course_digest(with_spec(**layout)) == course_digest(with_spec())
    assert course_digest(with_spec(**layout)) != course_digest(with_spec(**layout, seed=2))


def test_a_run_goes_on_with_another_layout_of_its_critic_and_its_reward_model() -> None:
    def course(parallelism: dict[str, int]) -> str:
        model = {"path": "m", "parallelism": parallelism}
        return course_digest(
            with_spec(
                accelerator={"devicesPerNode": 4},
                algorithm={"name": "ppo"},
                critic={"parallelism": parallelism},
                rewards=[{"name": "liked", "type": "model", "model": model}],
            )
        )

    assert course({"tensor": 2}) == course({"pipeline": 2})


def test_what_the_release_before_saved_of_a_course_is_known_and_of_either_placement() -> None:
    left = Path(__file__).parents[1] / "fixtures" / "last_release"
    job = resolve(read_job(yaml.safe_load((left / "job.yaml").read_text())))
    state = read_state(left / "run" / "checkpoints" / "step-000002")

    assert state.course_digest in earlier_digests(job)
    assert earlier_digests(with_spec()) == earlier_digests(with_spec(**separated(2, 4)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (separated(1, 4), separated(2, 4)),
        ({"accelerator": {"devicesPerNode": 2}}, {"accelerator": {"devicesPerNode": 4}}),
        ({"accelerator": {"nodes": 1}}, {"accelerator": {"nodes": 2}}),
        ({"seed": 1}, {"seed": 2}),
    ],
)
def test_checkpoints_of_other_devices_that_train_or_another_seed_are_told_apart(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    assert digest(**before) != digest(**after)


def saved(**parallelism: Any) -> RunState:
    degrees = read_job(with_degrees(parallelism)).spec.update.parallelism.named
    return RunState(step=1, seed=1, weight_version=1, dock_rows=0, spec_digest="", degrees=degrees)


def with_degrees(parallelism: dict[str, Any]) -> dict[str, Any]:
    job = json.loads(json.dumps(SMALL_JOB))
    job["spec"]["accelerator"]["devicesPerNode"] = 4
    job["spec"]["update"]["parallelism"] = parallelism
    return dict(job)


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        (
            {"tensor": 2, "data": 2},
            "tensor 4",
            "saved by ranks with data 2 × tensor 2, this job has",
        ),
        ({"tensor": 4}, "", "saved by ranks with tensor 4, this job has data alone"),
        ({}, "tensor 4", "saved by ranks with data alone, this job has tensor 4"),
        ({"data": 4, "zero": 1}, "", "saved by ranks with data 4, zero 1, this job has data alone"),
    ],
)
def test_a_run_with_other_degrees_does_not_go_on_and_says_both(
    before: dict[str, Any], now: str, named: str
) -> None:
    state = saved(**before)

    with pytest.raises(CheckpointError, match=named):
        check_resumes(
            Path("step-000001"), state, spec_digest="", course_digests={"now"}, degrees=now
        )

    check_resumes(
        Path("step-000001"), state, spec_digest="", course_digests={"now"}, degrees=state.degrees
    )
