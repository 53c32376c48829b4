"""A whole run whose rewards are too large for a float: it stops, and says with which rows."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from whole_runs import run

pytestmark = [pytest.mark.run]

TOO_LARGE = '''
def reward(prompt, response, answer):
    """Every other one is infinite once it is a float of 4 bytes."""
    return 1e39 if sum(map(ord, response)) % 2 else 0.0
'''


def test_the_run_stops_and_names_a_file_with_the_rows(
    job_file: Callable[..., Path], untrained_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "large.py").write_text(TOO_LARGE)
    job = job_file(
        model={"path": untrained_model.name},
        update__engine="megatron",
        rewards=[{"name": "large", "type": "python", "python": {"path": "large.py"}}],
    )

    stopped = run(job, tmp_path / "run")

    assert stopped.code == 4, stopped.output
    file = tmp_path / "run" / "bad-batches" / "step-000001.json"
    (alarm,) = stopped.of_kind("alarm")
    assert alarm["alarm"] == "nonFinite"
    assert str(file) in alarm["message"]
    assert str(file) in stopped.of_kind("run_finished")[-1]["message"]
    rows = json.loads(file.read_text())["rows"]
    assert len({row["uid"] for row in rows}) == len(rows) == 8 * 4
    assert "reward" in rows[0]["not_finite"]
    assert rows[0]["reward"] == "inf"
    assert {"advantage", "loss"} <= set(rows[0]["not_finite"])
