"""A run never goes on from a damaged checkpoint: it names the file; its next attempt takes the one before."""

from collections.abc import Callable
from pathlib import Path

import pytest
from whole_runs import run

pytestmark = [pytest.mark.run]


def test_a_run_names_the_damaged_file_and_its_next_attempt_goes_on_from_the_checkpoint_before(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job, folder = job_file(steps=3, checkpoint={"every": 1, "keep": 4}), tmp_path / "run"
    assert run(job, folder).code == 0
    flipped = folder / "checkpoints/step-000003/model/model.safetensors"
    content = bytearray(flipped.read_bytes())
    content[100_000] ^= 1
    flipped.write_bytes(content)
    torn = folder / "checkpoints/step-000002/optimizer.pt"
    torn.write_bytes(torn.read_bytes()[:-1000])
    longer = job_file(steps=4, checkpoint={"every": 1, "keep": 4})

    for step, name in ((3, "model/model.safetensors"), (2, "optimizer.pt")):
        stopped = run(longer, folder, "--resume")
        assert stopped.code == 1
        assert f"step-00000{step}/{name} is damaged: its checksum is" in stopped.output
        assert f"it was moved to damaged-step-00000{step}" in stopped.output
    finished = run(longer, folder, "--resume")

    assert finished.code == 0, finished.output
    assert finished.of_kind("run_started")[-1]["resumed_from"] == 1
    kept = sorted(path.name for path in (folder / "checkpoints").glob("*step-*"))
    assert kept == [
        "damaged-step-000002", "damaged-step-000003",
        "step-000001", "step-000002", "step-000003", "step-000004",
    ]  # fmt: skip
