"""DPO from pairs in a file by a whole run: nothing is generated, and held-out pairs are told apart."""

import shutil
from pathlib import Path

import pytest
import yaml
from whole_runs import Finished, run

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


def weights(finished: Finished) -> bytes:
    """After the last step."""
    assert finished.code == 0, finished.output
    return (finished.folder / "checkpoints/step-000006/model/model.safetensors").read_bytes()


def test_a_run_that_reads_what_an_earlier_one_has_kept_of_the_reference_ends_with_its_bits(
    tmp_path: Path,
) -> None:
    """Three epochs of two steps, trained by Megatron Core."""
    job = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    job["spec"] |= {"steps": 6, "evaluation": {"prompts": 8}, "checkpoint": {"every": 3}}
    job["spec"].setdefault("update", {})["engine"] = "megatron"
    lines = (EXAMPLE / "pairs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "pairs.jsonl").write_text("".join(lines[:40]))
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    own = {"RLJOB_CACHE": str(tmp_path / "cache")}

    computed = run(tmp_path / "job.yaml", tmp_path / "computed", environment=own)
    files = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*.rows")}
    read = run(tmp_path / "job.yaml", tmp_path / "read", environment=own)
    left = {file: file.stat().st_mtime_ns for file in (tmp_path / "cache").rglob("*.rows")}

    assert weights(computed) == weights(read)
    assert (
        len(files) == 2 * 3
    )  # of each device: the held-out pairs, and two steps of the first epoch
    assert left == files
