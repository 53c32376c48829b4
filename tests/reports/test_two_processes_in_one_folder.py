"""With `--resume` beside a run that was still training, both wrote into its folder, and one removed what the
other needed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from whole_runs import SMALL_JOB, finish, start, wait_for_event

from rljob_runtime.errors import FolderInUse
from rljob_runtime.run.run_lock import LOCK_NAME, RunLock

HOLDER = """
import sys, time
from pathlib import Path
from rljob_runtime.run.run_lock import RunLock
lock = RunLock(Path(sys.argv[1]), wait_seconds=0)
print("locked", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which has the lock of `tmp_path`."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_folder_in_use_names_the_process_that_uses_it(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    with pytest.raises(
        FolderInUse, match=rf"a run is training there already, process {holder.pid} on"
    ):
        RunLock(tmp_path, wait_seconds=0)


def test_a_lock_ends_with_its_process_however_that_dies(
    tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    holder.kill()

    RunLock(tmp_path, wait_seconds=60).release()


def test_a_child_that_was_forked_does_not_keep_the_lock(tmp_path: Path) -> None:
    lock = RunLock(tmp_path, wait_seconds=0)
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writes)
        os.read(reads, 1)  # until its parent has looked
        os._exit(0)
    lock.release()

    looked = subprocess.run(
        [sys.executable, "-c", HOLDER.replace("time.sleep(600)", ""), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    os.close(writes)
    os.close(reads)
    os.waitpid(child, 0)

    assert looked.stdout == "locked\n", looked.stderr


def test_a_file_that_names_no_process_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_text("left behind")

    RunLock(tmp_path, wait_seconds=0).release()


@pytest.mark.run
def test_resume_beside_the_live_run_is_refused_and_the_run_goes_on(tmp_path: Path) -> None:
    job, folder = tmp_path / "job.yaml", tmp_path / "run"
    one = {"steps": 2000, "accelerator": {"type": "emulated", "devicesPerNode": 1}}
    job.write_text(yaml.safe_dump({**SMALL_JOB, "spec": {**SMALL_JOB["spec"], **one}}))
    live = start(job, folder)
    wait_for_event(folder, "step", 1, live)

    second = finish(start(job, folder, "--resume"), folder)
    live.send_signal(signal.SIGINT)
    first = finish(live, folder)

    assert (second.code, first.code) == (1, 3)
    assert re.search(rf"process {live.pid} on \S+ since \S+ \S+; wait for its end", second.output)
    assert len(first.of_kind("run_started")) == 1
