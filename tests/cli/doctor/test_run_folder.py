"""`rljob doctor RUN` says of a run's folder whether its files are what was written."""

import json
from pathlib import Path

import pytest
import yaml
from remote_runs import save
from typer.testing import CliRunner
from whole_runs import SMALL_JOB

from rljob_runtime.cli.main import app
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.checksums import write_rank_sums


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a run leaves that was killed once."""
    (tmp_path / "rljob.yaml").write_text(yaml.safe_dump(SMALL_JOB))
    (tmp_path / "events.jsonl").write_text(
        '{"time": 1.0, "kind": "step"}\n{"time": 2\n{"time": 3}\n'
    )
    store = CheckpointStore(folder=tmp_path / "checkpoints", keep=5)

    def leave(draft: Path) -> None:
        write_rank_sums(draft, [file for file in draft.rglob("*") if file.is_file()], rank=0)

    for step in (2, 4):
        save(store, step, leave)
    return tmp_path


def doctor(folder: Path) -> tuple[int, list[tuple[str, str, str]]]:
    """Exit code, and check, status and text of each line."""
    ended = CliRunner().invoke(app, ["doctor", str(folder), "--json"])
    found = json.loads(ended.output)["findings"]
    return ended.exit_code, [(line["check"], line["status"], line["text"]) for line in found]


def test_a_whole_folder_passes_and_a_torn_line_is_no_fault(folder: Path) -> None:
    code, lines = doctor(folder)

    assert code == 0
    assert [line[:2] for line in lines] == [
        ("spec", "ok"), ("events", "ok"), ("events", "warn"),
        ("checkpoints", "ok"), ("checkpoints", "ok"), ("best", "skipped"),
    ]  # fmt: skip
    assert lines[2][2] == "1 lines are torn (line 2)"
    assert lines[3][2].startswith("step 2: 3 files, 0.0 MB, as they were written")


def test_a_damaged_checkpoint_fails_by_its_files_name(folder: Path) -> None:
    (folder / "checkpoints" / "step-000004" / "optimizer.pt").write_bytes(b"moments of 5")

    code, lines = doctor(folder)
    own = doctor(folder / "checkpoints" / "step-000004")

    assert code == 1
    (failed,) = [text for _, status, text in lines if status == "fail"]
    assert "step-000004/optimizer.pt is damaged: its checksum is" in failed
    assert own[0] == 1


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["doctor", str(tmp_path)])

    assert ended.exit_code == 2
    assert "holds no run and is no checkpoint" in ended.output
