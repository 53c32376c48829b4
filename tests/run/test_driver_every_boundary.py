"""A driver that dies at any message or write: its next run goes on, and every sample counts once.

The driver, its flow and its checkpoints are the real ones; the actors are a world of few lines that knows
which samples its weights were trained on. Real processes die in test_resume_is_bitwise.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from driver_world import (
    FLOWS,
    SAMPLES,
    Boundaries,
    CountedLog,
    Killed,
    Sample,
    ToldDriver,
    World,
    driver_of,
    job_with,
)
from whole_runs import SMALL_JOB

from rljob_api.spec.rljob import RLJob
from rljob_api.topology.resolved import resolve
from rljob_runtime.processes.actors.reward_worker import RewardReport
from rljob_runtime.prompts.difficulty import Difficulty
from rljob_runtime.record.checkpoint import CheckpointStore, RunState, read_state
from rljob_runtime.run.loop import run_steps


def told_checkpoint(folder: Path) -> int:
    """The last step whose checkpoint was told of, 0 when there is none."""
    events = folder / "events.jsonl"
    told = [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []
    return max([event["step"] for event in told if event["kind"] == "checkpoint"], default=0)


def live(job: RLJob, folder: Path, boundaries: Boundaries) -> list[Sample]:
    """One driver's life, from what the last one left to the end. Returns what its weights are of."""
    store = CheckpointStore(folder=folder / "checkpoints", keep=job.spec.checkpoint.keep)
    store.recover()
    assert (store.last_step() or 0) >= told_checkpoint(folder)
    log = CountedLog(folder / "events.jsonl", boundaries)
    world = World(boundaries)
    try:
        living = driver_of(ToldDriver, job, world=world, store=store, log=log)
        if latest := store.latest():
            living.resume(latest)
        run_steps(living)
        assert store.last_step() == job.spec.steps
    finally:
        log.close()
    return world.weights


@pytest.mark.parametrize("flow", FLOWS, ids=[flow["mode"] for flow in FLOWS])
def test_a_driver_killed_at_any_boundary_and_at_one_more_of_its_next_life_trains_each_sample_once(
    flow: dict[str, Any], boundaries: Boundaries, tmp_path: Path
) -> None:
    job = job_with(flow)
    whole = [(step, i) for step in range(1, job.spec.steps + 1) for i in range(SAMPLES)]

    die_everywhere(job, whole, boundaries, tmp_path)


@pytest.mark.parametrize(
    "flow",
    [
        {"mode": "sync"},
        {"mode": "streaming"},
        {"mode": "async"},
        {"mode": "async", "maxStaleness": 3},
    ],
)
def test_groups_left_over_by_dynamic_sampling_are_trained_on_once_wherever_the_driver_dies(
    flow: dict[str, Any], boundaries: Boundaries, tmp_path: Path
) -> None:
    params = {"dynamicSampling": {"whenShort": "go-on"}}
    job = job_with(flow, algorithm={"name": "dapo", "params": params}, steps=3)
    needed = job.spec.steps * job.spec.batch.global_batch_size
    teaching = [position for position in range(4 * needed) if position % 3]

    die_everywhere(job, [(position, 0) for position in teaching[:needed]], boundaries, tmp_path)


@pytest.mark.parametrize("mode", ["sync", "streaming"])
def test_prompts_that_are_left_out_are_the_same_wherever_the_driver_dies(
    mode: str, boundaries: Boundaries, tmp_path: Path
) -> None:
    chosen = {"leaveOut": "all-right", "visits": 1, "restPasses": 1}
    data = {**SMALL_JOB["spec"]["data"], "trainSize": 16, "difficultyFilter": chosen}
    job = job_with({"mode": mode}, data=data)
    filter_alone = Difficulty.of(resolve(job).spec)
    assert filter_alone is not None
    filter_alone.size = 16
    whole: list[Sample] = []
    for step in range(1, job.spec.steps + 1):
        drawn = filter_alone.draw(step)
        right = [float(position % 2) for position in drawn]
        filter_alone.learn([RewardReport(passes=right, prompts=list(range(len(drawn))))])
        whole += [(position, 0) for position in drawn]
    assert whole[-1] > (
        job.spec.steps * job.spec.batch.global_batch_size,
        0,
    )  # some were passed over

    die_everywhere(job, whole, boundaries, tmp_path)


def die_everywhere(job: RLJob, whole: list[Sample], boundaries: Boundaries, tmp_path: Path) -> None:
    """Assert that weights are of `whole` at the end, in this order, whatever lives a run had."""

    def lives(folder: Path, fatal: list[int]) -> list[Sample]:
        """What the weights are trained on after drivers that die at these boundaries, and a last one."""
        folder.mkdir(parents=True)
        for place in fatal:
            boundaries.crossed, boundaries.fatal = 0, place
            with contextlib.suppress(Killed):
                live(job, folder, boundaries)
        boundaries.crossed, boundaries.fatal = 0, None
        return live(job, folder, boundaries)

    assert lives(tmp_path / "undisturbed", []) == whole
    deaths = boundaries.crossed
    assert deaths > 50
    for place in range(deaths):
        assert lives(tmp_path / str(place), [place, place * 7 % deaths]) == whole, place


def test_a_checkpoint_that_is_made_again_is_whole_wherever_the_driver_dies(
    boundaries: Boundaries, tmp_path: Path
) -> None:
    state = RunState(step=4, seed=0, weight_version=4, dock_rows=0, spec_digest="")

    def save(folder: Path) -> None:
        store = CheckpointStore(folder=folder, keep=1)
        (store.begin(4) / "model").write_text("weights")
        store.commit(state)

    save(tmp_path / "counted")
    boundaries.crossed = 0
    save(tmp_path / "counted")
    for place in range(boundaries.crossed):
        folder = tmp_path / str(place)
        save(folder)
        boundaries.crossed, boundaries.fatal = 0, place
        with pytest.raises(Killed):
            save(folder)
        boundaries.fatal = None

        store = CheckpointStore(folder=folder, keep=1)
        store.recover()

        latest = store.latest()
        assert latest is not None
        assert read_state(latest) == state
        assert (latest / "model").read_text() == "weights"
        assert [path.name for path in folder.iterdir()] == ["step-000004"]
