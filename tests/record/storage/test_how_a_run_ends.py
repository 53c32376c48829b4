"""A run has succeeded when its last checkpoint is where the job wants it. The trainer here only counts."""

import contextlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cluster_jobs import JOB, merged
from remote_runs import save

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import ResolvedJob, resolve
from rljob_runtime.dock.address import DockAddress
from rljob_runtime.record.event_types import CheckpointEvent, StepEvent
from rljob_runtime.record.remote import open_remote
from rljob_runtime.run import launch
from rljob_runtime.run.early_stopping import EarlyStopping
from rljob_runtime.run.run_request import RunRequest

STEPS = 3
DOCK = DockAddress(token="", warehouses=(), controllers={})


@dataclass
class Counter:
    """In the driver's place: a step is a number, a checkpoint its files."""

    job: ResolvedJob
    log: Any
    store: Any
    step: int = 0
    progress_count: int = 0
    watch: Any = field(default_factory=contextlib.nullcontext)

    @property
    def early_stopping(self) -> EarlyStopping:
        return EarlyStopping.of(self.job.spec, log=self.log, store=self.store)

    def resume(self, checkpoint: Path) -> None:
        self.step = json.loads((checkpoint / "state.json").read_text())["step"]

    def run(self) -> None:
        while self.step < STEPS:
            self.step += 1
            metrics = {"reward/mean": 0.5}
            self.log.write(StepEvent(step=self.step, seconds=0.1, metrics=metrics))
            path = save(self.store, self.step)
            self.log.write(CheckpointEvent(step=self.step, path=str(path)))

    def save(self) -> None:
        raise AssertionError("nobody interrupts this run")


@pytest.fixture
def train(disk, tmp_path, monkeypatch):
    """train(): the exit code of a run with copies on a disk, without Ray."""
    monkeypatch.setattr(launch, "model_paths", lambda *_, **__: {"policy": tmp_path})
    monkeypatch.setattr(launch, "check_goes_on", lambda *_: None)  # its checkpoints name no spec
    workers = SimpleNamespace(host="127.0.0.1", hold_ports=lambda count: [0] * count)
    session = SimpleNamespace(workers=workers, joined=lambda: None)
    monkeypatch.setattr(launch, "worker_session", lambda *_, **__: contextlib.nullcontext(session))
    monkeypatch.setattr(launch, "_make_actors", lambda *_, **__: SimpleNamespace(dock=DOCK))
    monkeypatch.setattr(
        launch, "Driver", lambda *, job, log, store, **_: Counter(job=job, log=log, store=store)
    )
    monkeypatch.setattr(launch, "run_steps", lambda driver, taken: driver.run())
    storage = {"remote": {"uri": disk.uri}}
    spec = {"steps": STEPS, "checkpoint": {"every": 1, "keep": 1, "storage": storage}}

    def run() -> int:
        return launch.run_job(
            RunRequest(
                job=resolve(read_job(merged(JOB, {"spec": spec}))),
                job_file=tmp_path / "job.yaml",
                output=tmp_path / "run",
                resume="if-any",
                cache_dir=tmp_path / "cache",
                ray_address=None,
            )
        )

    return run


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def trained_steps(folder: Path) -> list[int]:
    return [event["step"] for event in events(folder) if event["kind"] == "step"]


def test_a_run_whose_folder_is_lost_has_nothing_to_do_again(train, disk, tmp_path):
    remote = open_remote(disk, "run")

    assert train() == 0
    assert remote.steps() == [STEPS]
    shutil.rmtree(tmp_path / "run")
    assert train() == 0

    assert trained_steps(tmp_path / "run") == [1, 2, 3]
    last = json.loads(remote.fs.cat_file(f"{remote.root}/events.jsonl").splitlines()[-1])
    assert (last["kind"], last["status"]) == ("run_finished", "succeeded")
    assert remote.fs.exists(f"{remote.root}/report.html")


def test_a_run_whose_last_copy_is_missing_fails_and_the_next_one_makes_it(
    train, disk, tmp_path, capsys
):
    remote = open_remote(disk, "run")
    obstacle = Path(remote.root) / "checkpoints"
    obstacle.parent.mkdir(parents=True)
    obstacle.write_text("no folder")

    assert train() == 1
    assert remote.steps() == []
    end = events(tmp_path / "run")[-1]
    local = tmp_path / "run" / "checkpoints" / "step-000003"
    assert end["status"] == "failed"
    assert end["message"].startswith("trained to the end, but the checkpoint of step 3 is not on")
    assert str(local) in end["message"]
    assert end["message"] in capsys.readouterr().err
    assert local.is_dir()

    obstacle.unlink()
    assert train() == 0
    assert remote.steps() == [STEPS]
    assert trained_steps(tmp_path / "run") == [1, 2, 3]


def test_a_run_has_succeeded_without_its_report_too(train, tmp_path, monkeypatch, capsys):
    def refuse(folder: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(launch, "write_report", refuse)

    assert train() == 0
    told = capsys.readouterr().err
    assert "the report was not written: OSError: [Errno 28] No space left on device" in told
    assert f"rljob report {tmp_path / 'run'} tries again" in told


def test_an_error_that_nobody_foresaw_is_told_at_the_end_of_the_events(
    train, tmp_path, monkeypatch
):
    def save(self: Counter) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Counter, "run", save)

    with pytest.raises(OSError, match="No space left"):
        train()

    end = events(tmp_path / "run")[-1]
    assert (end["kind"], end["exit_code"]) == ("run_finished", 1)
    assert end["message"] == "OSError: [Errno 28] No space left on device"
