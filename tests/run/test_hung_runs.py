"""A stage that does not end: the run fails with who is missing, and leaves everybody's stacks. Asked before,
it tells where they are, and goes on."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from free_ports import free_port
from page_data import page_data
from whole_runs import DriverHere, run_while, wait_for_event

STAGE_SECONDS = 15
HANGS = """
import threading

def never_answers(prompt, response, answer):
    threading.Event().wait()

def reward(prompt, response, answer):
    never_answers(prompt, response, answer)
"""


def ask_stacks(port: int) -> str:
    """As the operator does before it ends a run."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/stacks",
        data=json.dumps({"deadline": "progressDeadlineSeconds", "message": "no step"}).encode(),
        headers={"Authorization": "Bearer the-token"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(json.load(answer)["told"])


@pytest.mark.run
@pytest.mark.nightly
def test_a_reward_that_hangs_is_found_by_its_stack_and_named_in_the_runs_error(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    python = {"type": "python", "python": {"path": "hangs.py"}, "timeoutSeconds": 3000}
    job = job_file(
        rewards=[{"name": "mine", **python}],
        flow={"mode": "sync", "stageTimeoutSeconds": STAGE_SECONDS},
    )

    folder, port = tmp_path / "run", free_port()
    told = []

    def ask(driver: DriverHere) -> None:
        wait_for_event(folder, "phase", 1, driver)
        told.append(ask_stacks(port))

    environment = {"RLJOB_STATUS_PORT": str(port), "RAY_AUTH_TOKEN": "the-token"}
    finished = run_while(job, folder, beside=ask, environment=environment)

    assert finished.code == 5
    asked, hang = finished.of_kind("hang")
    assert asked["stage"] == "progressDeadlineSeconds"
    assert told[0].endswith(f"stacks and dock: {asked['folder']}")
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
    assert "missing: reward-0 is in score (task/rewards/scorer_pool.py" in ended["message"]
    assert ended["message"].endswith(f"stacks and dock: {folder}")
    assert str(folder) in page_data(tmp_path / "run" / "report.html")["status"]["message"]
    assert not (tmp_path / "run" / "driver.json").exists()
