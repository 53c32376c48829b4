"""A whole run with suites: every set is evaluated before and after, and the best checkpoint is exported."""

from collections.abc import Callable
from pathlib import Path

import pytest
from whole_runs import run

from rljob_runtime.models.export import find_best

pytestmark = [pytest.mark.run]


def test_a_run_evaluates_each_level_of_a_suite_and_names_its_best_step(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    levels = {
        "name": "longer",
        "reasoningGym": {"dataset": "spell_backward"},
        "levels": [0, 1],
        "prompts": 6,
        "samplesPerPrompt": 2,
        "temperature": 0.0,
    }
    job = job_file(
        steps=2,
        model__warmup={"targetAccuracy": 0.2, "maxSteps": 40},
        evaluation={"prompts": 12, "suites": [levels], "metric": "reward"},
        checkpoint={"keepBest": True},
        guards={"constantReward": {"policy": "ignore"}},
    )

    finished = run(job, tmp_path / "run")

    assert finished.code == 0, finished.output
    before, after = finished.of_kind("evaluation")
    assert (before["step"], after["step"]) == (0, 2)
    for event in (before, after):
        assert (event["n"], event["k"]) == (12, 1)
        sizes = {name: (suite["n"], suite["k"]) for name, suite in event["suites"].items()}
        assert sizes == {"longer/level-0": (6, 2), "longer/level-1": (6, 2)}
        for suite in event["suites"].values():  # likeliest tokens: both samples are the same
            assert suite["pass_at_k"] == pytest.approx(suite["accuracy"])
    assert "longer/level-1" in finished.output
    if after["reward"] > before["reward"]:
        assert [event["step"] for event in finished.of_kind("best")] == [2]
        assert find_best(finished.folder).parent.name == "step-000002"
    else:
        assert finished.of_kind("best") == []
