"""A stage that does not end: the run fails with who is missing, and leaves everybody's stacks."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from whole_runs import finish, start

STAGE_SECONDS = 40
WHOLE_SECONDS = 500
HANGS = """
import threading

def never_answers(prompt, response, answer):
    threading.Event().wait()

def reward(prompt, response, answer):
    never_answers(prompt, response, answer)
"""


@pytest.mark.ray
def test_a_reward_that_hangs_is_found_by_its_stack_and_named_in_the_runs_error(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    python = {"type": "python", "python": {"path": "hangs.py"}, "timeoutSeconds": 3000}
    job = job_file(
        rewards=[{"name": "mine", **python}],
        flow={"mode": "sync", "stageTimeoutSeconds": STAGE_SECONDS},
    )

    folder = tmp_path / "run"
    finished = finish(start(job, folder), folder, timeout=WHOLE_SECONDS)

    assert finished.code == 5
    (hang,) = finished.of_kind("hang")
    folder = Path(hang["folder"])
    assert folder.parent == tmp_path / "run" / "hangs"
    assert hang["stage"] == "reward"
    assert [one["process"] for one in hang["missing"]] == ["reward-0"]
    assert "_score_rows" in (folder / "reward-0.txt").read_text()
    assert "in never_answers" in (folder / "reward-0.txt").read_text()
    names = {file.name for file in folder.iterdir()}
    assert {"device-0.txt", "device-1.txt", "feeder.txt", "warehouse-0.txt", "driver.txt"} <= names
    dock = json.loads((folder / "dock.json").read_text())
    (lease,) = dock["controller/reward"]["leases"]
    assert (lease["owner"], lease["rows"]) == ("reward-0", {"train/1": 32})
    ended = finished.of_kind("run_finished")[-1]
    assert ended["message"] == hang["message"]
    assert "missing: reward-0 is in score (rewards/pool.py" in ended["message"]
    assert ended["message"].endswith(f"stacks and dock: {folder}")
    assert str(folder) in (tmp_path / "run" / "report.html").read_text()
    assert not (tmp_path / "run" / "driver.json").exists()
