"""The quickstart in short form: the reward rises, and so does accuracy on words never trained on."""

from pathlib import Path

import pytest
import yaml
from whole_runs import run

pytestmark = [pytest.mark.run, pytest.mark.nightly]
EXAMPLE = Path(__file__).parents[2] / "examples" / "quickstart.yaml"


def test_a_tenth_of_the_quickstart_gains_eight_points_on_held_out_words(tmp_path: Path) -> None:
    job = yaml.safe_load(EXAMPLE.read_text())
    job["spec"] |= {"seed": 0, "steps": 30}
    job["spec"]["batch"]["samplesPerPrompt"] = 4
    job["spec"]["evaluation"].pop("every")
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(job))

    finished = run(file, tmp_path / "run")

    assert finished.code == 0, finished.output
    before, after = (event["accuracy"] for event in finished.of_kind("evaluation"))
    rewards = [event["metrics"]["reward/mean"] for event in finished.of_kind("step")]
    assert after - before >= 0.08
    assert sum(rewards[-10:]) > sum(rewards[:10])
