"""`rljob analyze` on runs that sleep: it names what they wait for, and the remedy, whatever else runs here.

Recorded runs show the rest (`report/analysis/test_recorded_runs.py`).
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from slow_jobs import SLOW_JOBS, slow_answers, slow_service, write_job
from typer.testing import CliRunner
from whole_runs import run

from rljob_runtime.cli.main import app

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
    assert found["parts"]["reward"]["seconds"] >= 2.4  # eight prompts of 0.3 s each


@pytest.mark.nightly
def test_a_service_that_is_asked_one_by_one_is_to_be_asked_for_a_groups_samples_at_once(analyzed):
    with slow_service() as url:
        found = analyzed(slow_answers(url))

    assert found["bottleneck"] == "reward"
    (reward,) = changes(found, "reward")[0]["rewards"]
    assert reward["http"]["concurrency"] == 4
