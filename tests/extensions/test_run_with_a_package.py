"""A whole run whose engines, algorithm, reward and data come from an installed package."""

from pathlib import Path

import pytest
import yaml
from example_plugin import PLUGIN
from whole_runs import run

from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.tiny_recipe import CONFIG
from rljob_runtime.models.weights import save_hf
from rljob_runtime.task.tokenizer import save_byte_tokenizer

pytestmark = [pytest.mark.run, pytest.mark.xdist_group("example-plugin")]


def save_model(folder: Path) -> None:
    """A small model that knows nothing: the run needs no warm-up."""
    config = CONFIG | {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    decoder = Decoder(read_architecture(config))
    decoder.initialize(seed=3)
    save_hf(decoder.named_hf_parameters(), folder=folder, config=config)
    save_byte_tokenizer(folder)


@pytest.mark.usefixtures("plugin")
def test_a_job_trains_with_all_that_a_package_has(tmp_path: Path) -> None:
    job = yaml.safe_load((PLUGIN / "job.yaml").read_text())
    log = tmp_path / "engines.log"
    for role in ("rollout", "update"):
        job["spec"][role]["params"]["log"] = str(log)
    job["spec"]["model"] = {"path": "model"}
    save_model(tmp_path / "model")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    finished = run(tmp_path / "job.yaml", tmp_path / "run")

    assert finished.code == 0, finished.output
    lines = log.read_text().splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["rollout", "version=0"], ["update", "step=1"],
        ["rollout", "version=1"], ["update", "step=2"],
    ]  # fmt: skip
    assert "samples=32" in lines[0]
    (started,) = finished.of_kind("run_started")
    assert started["versions"]["rljob-example-plugin"] == "0.1.0"
    assert started["dataset"] == "example.counting"
    assert started["algorithm"] == "example.opo"
    assert [step["metrics"]["reward/prefix"] >= 0 for step in finished.of_kind("step")] == [
        True,
        True,
    ]
