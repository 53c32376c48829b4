"""A run that records one step on one device, and no other."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from whole_runs import run

pytestmark = [pytest.mark.ray]


def test_each_state_of_the_step_leaves_a_trace_on_the_device_that_was_named(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    finished = run(job_file(steps=3, profile={"steps": [2], "ranks": [1]}), tmp_path / "run")

    assert finished.code == 0, finished.output
    told = finished.of_kind("profile")
    assert {(event["step"], event["rank"]) for event in told} == {(2, 1)}
    assert {event["state"] for event in told} == {"generate", "update", "sync"}
    files = {file for file in (finished.folder / "profile").rglob("*") if file.is_file()}
    assert files == {finished.folder / event["path"] for event in told}
    for event in told:
        content = (finished.folder / event["path"]).read_bytes()
        assert len(content) == event["bytes"]
        assert json.loads(gzip.decompress(content))["traceEvents"]
    (update,) = (event for event in told if event["state"] == "update")
    assert any(operator["name"].startswith("aten::") for operator in update["operators"])
    assert "rank-1-update.json.gz" in (finished.folder / "report.html").read_text()
