"""A driver on Ray that is killed: another one goes on with the run, on the same workers."""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from whole_runs import Finished, finish, gone_within, run, start, steps_done, wait_for_event

from rljob_runtime.record.driver_file import read_driver

pytestmark = [pytest.mark.ray]

WAIT_SECONDS = 300.0
ONCE = ("step", "dock", "checkpoint", "evaluation", "run_started", "run_finished")


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not happened():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.001)


def driver_of(folder: Path) -> int:
    """Its pid; 0 where it is not there yet."""
    try:
        return read_driver(folder).pid
    except (OSError, ValueError):
        return 0


def devices(process: subprocess.Popen[str]) -> list[psutil.Process]:
    found = psutil.Process(process.pid).children(recursive=True)
    return [each for each in found if each.name().startswith("ray::DeviceWork")]


def kill_driver(folder: Path, process: subprocess.Popen[str]) -> None:
    """And wait until another one has taken over."""
    pid, recovered = driver_of(folder), recoveries(folder)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: driver_of(folder) not in (0, pid), process)
    wait_until(lambda: recoveries(folder) > recovered, process)


def recoveries(folder: Path) -> int:
    return (folder / "events.jsonl").read_text().count('"kind":"recovery"')


def told(finished: Finished) -> Counter[tuple[str, int]]:
    return Counter((e["kind"], e.get("step", 0)) for e in finished.events if e["kind"] in ONCE)


@pytest.mark.nightly
def test_a_driver_killed_at_one_phase_after_the_other_changes_nothing(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    job = job_file(steps=9, checkpoint={"every": 4}, evaluation={"prompts": 8, "every": 3})
    whole = run(job, tmp_path / "undisturbed")
    folder = tmp_path / "run"
    drafts = folder / "checkpoints"

    process = start(job, folder, ray=True)
    wait_until(lambda: driver_of(folder) != 0 and bool(devices(process)), process)
    kill_driver(folder, process)  # devices were on their way
    wait_for_event(folder, "step", 1, process)
    there = devices(process)
    kill_driver(folder, process)  # in a step
    wait_until(lambda: any(drafts.glob(".draft-step-000004*")), process)
    kill_driver(folder, process)  # in a checkpoint
    wait_for_event(folder, "step", 6, process)
    kill_driver(folder, process)  # in an evaluation
    stayed = devices(process)
    ended = finish(process, folder)

    assert ended.code == 0, ended.output
    assert stayed == there
    assert [e["others"] for e in ended.of_kind("recovery")] == [["driver"]] * 4
    again = told(ended) - told(whole)
    assert set(again) <= {("run_started", 0)}  # of the one that had begun nothing
    assert told(whole) - told(ended) == Counter()
    model = Path("checkpoints/step-000009/model/model.safetensors")
    assert (folder / model).read_bytes() == (whole.folder / model).read_bytes()
    for state in (whole.folder / "checkpoints/step-000009").glob("optimizer*"):
        assert (folder / "checkpoints/step-000009" / state.name).read_bytes() == state.read_bytes()


@pytest.mark.nightly
def test_a_run_that_is_asked_to_stop_while_it_has_no_driver_leaves_a_checkpoint(
    job_file: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    one = {"type": "emulated", "devicesPerNode": 1}
    job = job_file(steps=2000, checkpoint={"every": 2000}, accelerator=one)
    process = start(job, folder, ray=True)
    wait_for_event(folder, "step", 2, process)

    os.kill(driver_of(folder), signal.SIGKILL)
    process.send_signal(signal.SIGINT)
    ended = finish(process, folder)

    assert ended.code == 3, ended.output
    assert steps_done(folder) in [event["step"] for event in ended.of_kind("checkpoint")]
    assert gone_within(process.pid, 30) == []
