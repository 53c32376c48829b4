"""DPO from pairs in a file by a whole run: nothing is generated, and held-out pairs are told apart."""

import shutil
from pathlib import Path

import pytest
from whole_runs import run

pytestmark = [pytest.mark.run]
EXAMPLE = Path(__file__).parents[2] / "examples" / "preferences"


def test_pairs_of_a_file_raise_the_margin_and_the_held_out_accuracy(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE, tmp_path / "job")

    finished = run(tmp_path / "job" / "job.yaml", tmp_path / "run")

    assert finished.code == 0, finished.output
    steps = [event["metrics"] for event in finished.of_kind("step")]
    before, after = finished.of_kind("evaluation")
    assert steps[0]["pairs/margin"] == 0  # the policy is the reference
    assert steps[-1]["pairs/margin"] > 0.1
    assert (before["accuracy"], before["reward"], before["n"]) == (0, 0, 32)
    assert after["accuracy"] > 0.75
    assert after["reward"] > 0.1
    phases = {event["name"] for event in finished.of_kind("phase")}
    assert phases == {"reference", "compare", "update"}
    assert all("reward/mean" not in metrics for metrics in steps)
    assert all(metrics["tokens_per_second"] > 0 for metrics in steps)
