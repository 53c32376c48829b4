"""A SIGTERM to all processes of a run, as service managers send it, ended its workers first: a minute later
it was over, without the steps since the last checkpoint. A Ctrl-C in its first seconds was a traceback."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import yaml
from wait_until import wait_until
from whole_runs import SMALL_JOB, finish, gone_within, start, wait_for_event


@pytest.fixture
def job(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    spec = {**SMALL_JOB["spec"], "steps": 2000, "checkpoint": {"every": 2000}}
    file.write_text(yaml.safe_dump({**SMALL_JOB, "spec": spec}))
    return file


def test_a_signal_to_all_processes_of_a_run_leaves_a_checkpoint_of_its_last_step(
    job: Path, tmp_path: Path
) -> None:
    process = start(job, tmp_path / "run")
    wait_for_event(tmp_path / "run", "step", 2, process)

    os.killpg(process.pid, signal.SIGTERM)
    ended = finish(process, tmp_path / "run")

    assert ended.code == 3, ended.output
    saved = max(event["step"] for event in ended.of_kind("checkpoint"))
    assert saved == max(event["step"] for event in ended.of_kind("step")) >= 2
    assert gone_within(process.pid, 30) == []


def test_a_signal_while_the_workers_process_begins_ends_the_run_in_order(
    job: Path, tmp_path: Path
) -> None:
    process = start(job, tmp_path / "run")
    wait_until("a process to fork from is there", lambda: forkserver(process) is not None)

    os.killpg(process.pid, signal.SIGINT)
    ended = finish(process, tmp_path / "run")

    assert ended.code == 3, ended.output
    assert "Traceback" not in ended.output
    assert gone_within(process.pid, 30) == []


def forkserver(process: subprocess.Popen[str]) -> psutil.Process | None:
    """That of a run: what it forks its workers from."""
    for child in psutil.Process(process.pid).children():
        with contextlib.suppress(psutil.Error):  # one that ends meanwhile
            if "multiprocessing.forkserver" in " ".join(child.cmdline()):
                return child
    return None


def test_a_signal_while_the_command_line_is_imported_ends_it_in_silence() -> None:
    slow = "import sys, time; from importlib.abc import MetaPathFinder\n"
    slow += "class Slow(MetaPathFinder):\n def find_spec(self, name, *_):\n"
    slow += (
        "  if name == 'rljob_runtime.cli.main': print('importing', flush=True); time.sleep(60)\n"
    )
    slow += "sys.meta_path.insert(0, Slow())\nfrom rljob_runtime.cli.entry import main\nmain()"
    process = subprocess.Popen(
        [sys.executable, "-c", slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stdout.readline() == "importing\n"

    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)

    assert process.returncode == -signal.SIGINT
    assert errors == ""
