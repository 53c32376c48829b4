"""The command of an attempt, run by a shell as Ray runs it, with an `rljob` that is a script."""

import signal
import subprocess
import threading
from pathlib import Path

import pytest
from cluster_jobs import identity, make_job
from wait_until import wait_until

from rljob_operator.build import entrypoint as module
from rljob_operator.build.entrypoint import DRIVER_FILE, entrypoint
from rljob_operator.build.pods import STOP_DRIVER
from rljob_operator.decide.attempt import attempt_of, submission_id

DRIVER = """#!/bin/sh
trap 'echo stopped; exit 3' TERM
echo "argv: $*"
echo "a warning" >&2
for i in $(seq 600); do test -f {go} && break; sleep 0.1; done
echo "last words"
exit 7
"""


@pytest.fixture
def pod(tmp_path, monkeypatch):
    """A head pod of this test's own: run folder, log of the pod, Ray's log file."""
    monkeypatch.setattr("rljob_api.topology.pod_names.RUNS_DIRECTORY", str(tmp_path / "runs"))
    monkeypatch.setattr(module, "POD_LOG", str(tmp_path / "pod.log"))
    monkeypatch.setattr(module, "DRIVER_FILE", str(tmp_path / "driver"))
    (tmp_path / "bin").mkdir()
    driver = tmp_path / "bin" / "rljob"
    driver.write_text(DRIVER.format(go=tmp_path / "go"))
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}:/usr/bin:/bin")
    return tmp_path


def start(pod: Path, attempt: int = 0) -> subprocess.Popen[bytes]:
    command = entrypoint(make_job(), identity(), attempt=attempt)
    with (pod / "ray.log").open("ab") as log:
        return subprocess.Popen(
            command, shell=True, start_new_session=True, stdout=log, stderr=subprocess.STDOUT
        )


def run_folder(pod: Path) -> Path:
    return pod / "runs" / "research" / "spell-backward-0b9dd3a5"


def text_with(path: Path, end: str) -> str:
    """The file's text once it holds `end`: the copies come a moment after."""
    wait_until(f"{path.name} has {end!r}", lambda: path.exists() and end in path.read_text())
    return path.read_text()


def test_the_driver_is_heard_in_the_pods_log_and_in_the_runs_folder_while_it_runs(pod):
    driver = start(pod, attempt=2)

    early = text_with(pod / "pod.log", "a warning")
    assert "last words" not in early
    (pod / "go").touch()
    assert driver.wait(timeout=60) == 7

    command = f"run /etc/rljob/rljob.yaml --output {run_folder(pod)} --resume-if-any"
    heard = f"argv: {command}\na warning\nlast words\n"
    assert text_with(pod / "pod.log", "last words") == heard
    assert text_with(run_folder(pod) / "driver-2.log", "last words") == heard
    assert (pod / "ray.log").read_text() == heard


def test_before_the_heads_pod_ends_its_driver_does_and_a_later_one_waits_for_nobody(pod):
    driver = start(pod)
    text_with(pod / "pod.log", "a warning")
    before_the_end = ["sh", "-c", STOP_DRIVER.replace(DRIVER_FILE, str(pod / "driver"))]
    threading.Thread(target=driver.wait).start()  # as Ray, who started it

    first = subprocess.run(before_the_end, timeout=60)
    again = subprocess.run(before_the_end, timeout=60, stderr=subprocess.DEVNULL)

    assert driver.wait(timeout=60) == 3
    assert again.returncode == 0, first


def test_a_stop_reaches_the_driver_and_its_last_words_are_heard(pod):
    driver = start(pod)
    text_with(pod / "pod.log", "a warning")

    driver.send_signal(signal.SIGTERM)

    assert driver.wait(timeout=60) == 3
    assert text_with(pod / "pod.log", "stopped").endswith("stopped\n")


def test_where_nothing_can_be_copied_the_driver_runs_all_the_same(pod, monkeypatch):
    (pod / "runs").write_text("no folder")
    monkeypatch.setattr(module, "POD_LOG", "/nowhere/at/all")
    (pod / "go").touch()

    assert start(pod).wait(timeout=60) == 7

    assert (pod / "ray.log").read_text().endswith("a warning\nlast words\n")


def test_the_number_of_an_attempt_is_in_its_submission():
    assert attempt_of(submission_id(identity().uid, 12)) == 12
