"""`rljob analyze` on jobs that were built to be slow in four ways: it names the way, and the remedy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from paced_engine import ENGINE, write_package
from slow_jobs import SLOW_JOBS, slow_answers, slow_service, write_job
from typer.testing import CliRunner
from whole_runs import run

from rljob_api.check.load import read_job
from rljob_runtime.cli.main import app
from rljob_runtime.report.analysis.advice import merged

pytestmark = [pytest.mark.run]


@pytest.fixture
def analyzed(tmp_path: Path) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What is found in a run of a job."""

    def analyze(job: dict[str, Any]) -> dict[str, Any]:
        job["spec"]["steps"] = 3
        file, folder = write_job(job, tmp_path), tmp_path / "run"
        finished = run(file, folder)
        assert finished.code == 0, finished.output
        done = CliRunner().invoke(app, ["analyze", str(finished.folder), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.output)

    return analyze


def changes(found: dict[str, Any], part: str) -> list[dict[str, Any]]:
    """Advised for a part, best first; all of it promises a shorter step."""
    own = [advice for advice in found["advice"] if advice["part"] == part]
    estimates = [a["secondsPerStep"] for a in own if a["secondsPerStep"] is not None]
    assert all(seconds < found["secondsPerStep"] for seconds in estimates), own
    return [advice["change"]["spec"] for advice in own]


def test_a_slow_reward_service_is_to_run_beside_other_stages(analyzed):
    found = analyzed(SLOW_JOBS["reward"]())

    assert found["bottleneck"] == "reward"
    assert changes(found, "reward")[0]["flow"]["mode"] in ("async", "streaming")
    # eight prompts of 0.3 s each, whatever the machine does beside them
    assert found["parts"]["reward"]["seconds"] == pytest.approx(2.4, rel=0.25)


def test_a_service_that_is_asked_one_by_one_is_to_be_asked_for_a_groups_samples_at_once(analyzed):
    with slow_service() as url:
        found = analyzed(slow_answers(url))

    assert found["bottleneck"] == "reward"
    (reward,) = changes(found, "reward")[0]["rewards"]
    assert reward["http"]["concurrency"] == 4


def test_a_long_tail_of_lengths_is_to_go_on_in_the_next_step(analyzed, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(write_package(tmp_path)))
    job = SLOW_JOBS["tail"]()
    job["spec"]["rollout"] = {"engine": ENGINE}

    found = analyzed(job)

    assert found["bottleneck"] in ("tail", "generate"), found["parts"]
    assert "partialRollout" in changes(found, "tail")[0]["flow"], found["parts"]


def test_weights_of_unlike_layouts_are_to_be_trained_as_they_generate(analyzed):
    found = analyzed(SLOW_JOBS["reshard"]())

    assert found["bottleneck"] == "reshard", found["parts"]
    advised = changes(found, "reshard")
    degrees = {"data": 4, "tensor": 1, "pipeline": 1}
    assert advised[0] == {"update": {"parallelism": degrees}, "batch": {"microBatchSize": 1}}
    assert {"resharding": {"strategy": "stream"}} in advised


def test_an_update_in_many_small_passes_is_to_make_fewer_and_compute_nothing_twice(analyzed):
    found = analyzed(SLOW_JOBS["update"]())

    assert found["bottleneck"] == "update", found["parts"]
    advised = changes(found, "update")
    assert {"update": {"recompute": "none"}} in advised
    assert {"batch": {"microBatchSize": 4}} in advised
    assert advised[-1] == {"batch": {"epochs": 1}}  # learns otherwise, so it comes last
    for change in advised:
        read_job(merged(SLOW_JOBS["update"](), {"spec": change}))
