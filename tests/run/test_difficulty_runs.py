"""A whole run whose prompts are chosen by how difficult they were, and the same run killed and resumed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from whole_runs import SMALL_JOB, Finished, killed_copy, run

pytestmark = [pytest.mark.run]

SIZE = 16
OFTEN = '''
def reward(prompt, response, answer):
    """Three of four responses of a model that knows nothing are right."""
    return float(sum(map(ord, response)) % 4 > 0)
'''


def told(finished: Finished) -> dict[int, dict[str, Any]]:
    """Of each step, what its samples and the filter gave."""
    return {
        event["step"]: {
            name: value
            for name, value in event["metrics"].items()
            if name.startswith(("difficulty/", "reward/", "loss", "groups/"))
        }
        for event in finished.of_kind("step")
    }


def test_prompts_that_are_left_out_stay_out_over_a_resume_with_the_same_bits(
    job_file: Callable[..., Path], untrained_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "often.py").write_text(OFTEN)
    chosen = {"visits": 1, "restPasses": 3, "maxShare": 0.5}
    job = job_file(
        model={"path": untrained_model.name},
        data={**SMALL_JOB["spec"]["data"], "trainSize": SIZE, "difficultyFilter": chosen},
        rewards=[{"name": "often", "type": "python", "python": {"path": "often.py"}}],
    )

    whole = run(job, tmp_path / "whole")
    assert whole.code == 0, whole.output
    killed_copy(whole, 3, tmp_path / "killed")
    resumed = run(job, tmp_path / "killed", "--resume")

    assert resumed.code == 0, resumed.output
    steps = told(whole)
    assert 0 < steps[3]["difficulty/left_out"] <= SIZE // 2
    assert sum(step["difficulty/passed_over"] for step in steps.values()) > 0
    assert told(resumed) == steps
    model = Path("checkpoints", "step-000006", "model", "model.safetensors")
    assert (whole.folder / model).read_bytes() == (resumed.folder / model).read_bytes()
    assert "left out now" in whole.output
