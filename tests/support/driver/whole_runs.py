"""Whole runs through the command line, on a model small enough for seconds.

`run` lets this process be the driver, and forks its workers; so does `run_while`, with another thread that
strikes it, or asks. `start` makes a process of its own, for a driver that dies, or with Ray.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psutil
from typer.testing import CliRunner

from rljob_runtime.cli.main import app

WAIT_SECONDS = 400.0
STARTS_OVER = "starts over"
"""In the warning of a step whose rows are lost."""
SMALL_JOB: dict[str, Any] = {
    "apiVersion": "rljob.io/v1alpha1",
    "kind": "RLJob",
    "metadata": {"name": "small"},
    "spec": {
        "steps": 6,
        "seed": 3,
        "model": {"builtin": "tiny", "warmup": {"targetAccuracy": 0.2, "maxSteps": 120}},
        "data": {
            "template": "{word}=",
            "reasoningGym": {
                "dataset": "spell_backward",
                "params": {"min_word_len": 3, "max_word_len": 4},
            },
        },
        "rewards": [{"name": "correct", "type": "dataset", "threshold": 1.0}],
        "batch": {
            "globalBatchSize": 8,
            "samplesPerPrompt": 4,
            "maxPromptLength": 16,
            "maxResponseLength": 8,
        },
        "update": {"optimizer": {"learningRate": 3e-4}},
        "accelerator": {"type": "emulated", "devicesPerNode": 2},
        "checkpoint": {"every": 3},
    },
}


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that has ended."""

    code: int
    output: str
    folder: Path

    @property
    def events(self) -> list[dict[str, Any]]:
        """The run's events, in order."""
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """The run's events of one kind."""
        return [event for event in self.events if event["kind"] == kind]


def start(
    file: Path,
    folder: Path,
    *options: str,
    ray: bool = False,
    environment: dict[str, str] | None = None,
) -> subprocess.Popen[str]:
    """`rljob run` as a process of its own session."""
    command = [str(Path(sys.executable).with_name("rljob")), "run", str(file)]
    command += [] if ray else ["--local"]
    return subprocess.Popen(
        [*command, "--output", str(folder), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "COLUMNS": "120", **(environment or {})},
    )


def finish(
    process: subprocess.Popen[str], folder: Path, *, timeout: float = WAIT_SECONDS
) -> Finished:
    """Wait for the run's end."""
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        left = session_processes(process.pid)
        process.kill()  # its reaper ends the others: they would slow down all other tests
        raise AssertionError(f"after {timeout} s still there: {left}; {error.stdout!r}") from error
    return Finished(process.returncode, output, folder)


def run(
    file: Path, folder: Path, *options: str, environment: dict[str, str] | None = None
) -> Finished:
    """`rljob run --local` to its end, in this process."""
    words = ["run", str(file), "--output", str(folder), "--local", *options]
    ended = CliRunner().invoke(app, words, env={"COLUMNS": "120", **(environment or {})})
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    return Finished(ended.exit_code, ended.output, folder)


class Driver(Protocol):
    """A run's driver, as a test sees it from outside: a process, or this one."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def send_signal(self, number: int, /) -> None: ...


class DriverHere:
    """This process, while it runs a job."""

    def __init__(self) -> None:
        self.pid, self.ended = os.getpid(), False

    def poll(self) -> int | None:
        """0 where the run has ended, however it did."""
        return 0 if self.ended else None

    def send_signal(self, number: int, /) -> None:
        """To the run's own handler; the run must be there."""
        assert not self.ended
        os.kill(self.pid, number)


def run_while(
    file: Path,
    folder: Path,
    *options: str,
    beside: Callable[[DriverHere], object],
    environment: dict[str, str] | None = None,
) -> Finished:
    """As `run`; `beside` is called in a thread of its own meanwhile. What it raises is the test's failure."""
    driver = DriverHere()
    with ThreadPoolExecutor(1) as threads:
        acted = threads.submit(beside, driver)
        try:
            finished = run(file, folder, *options, environment=environment)
        finally:
            driver.ended = True
        if failure := acted.exception(timeout=WAIT_SECONDS):
            raise AssertionError(finished.output) from failure
    return finished


def killed_copy(finished: Finished, step: int, folder: Path) -> None:
    """Make a folder as the run would have left it, had it been killed after this step's checkpoint."""
    shutil.copytree(finished.folder, folder)
    events = finished.events
    last = next(
        place
        for place, event in enumerate(events, 1)
        if event["kind"] == "checkpoint" and event["step"] == step
    )
    file = folder / "events.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:last]))
    for event in events[last:]:
        if event["kind"] == "checkpoint":
            shutil.rmtree(folder / "checkpoints" / Path(event["path"]).name)


class RunsOfAll:
    """Runs that several tests look at, each made once, also where pytest has several workers.

    folder: of all workers. Who looks at a run writes nothing into its folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, job: Path) -> Finished:
        """The run of the job's file, which refers to no other files."""
        folder = self._folder / hashlib.blake2b(job.read_bytes(), digest_size=8).hexdigest()
        said = folder / "said.json"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not said.exists():
                shutil.rmtree(folder / "run", ignore_errors=True)  # of a worker that died
                finished = run(job, folder / "run")
                said.write_text(json.dumps([finished.code, finished.output]))
        code, output = json.loads(said.read_text())
        return Finished(code, output, folder / "run")


def wait_for_event(folder: Path, kind: str, number: int, driver: Driver) -> None:
    """Return once the run has written `number` events of this kind."""
    wait_for_text(folder, f'"kind":"{kind}"', driver, times=number)


def wait_for_text(folder: Path, text: str, driver: Driver, *, times: int = 1) -> None:
    """Return once the run's events hold the text so many times."""
    deadline = time.monotonic() + WAIT_SECONDS
    file = folder / "events.jsonl"
    while time.monotonic() < deadline:
        ended = driver.poll() is not None  # before the look: what it wrote last counts
        found = file.read_text().count(text) if file.exists() else 0
        if found >= times:
            return
        assert not ended, f"the run ended early: the events hold {text!r} {found} times"
        time.sleep(0.02)
    raise AssertionError(f"the events do not hold {text!r} {times} times in {WAIT_SECONDS:g} s")


def steps_done(folder: Path) -> int:
    """As the events tell by now."""
    return (folder / "events.jsonl").read_text().count('"kind":"step"')


def processes(driver: Driver, kind: str) -> list[psutil.Process]:
    """Those of a kind that live, such as DeviceWorker, the one that began first at the front."""
    found = []
    for process in psutil.Process(driver.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.name() == kind and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process.create_time(), process.pid, process))
    return [process for *_, process in sorted(found)]


def warehouses(driver: Driver) -> list[psutil.Process]:
    """Those of the run that are there now."""
    return [
        child
        for child in psutil.Process(driver.pid).children(recursive=True)
        if "WarehouseActor" in "".join(child.cmdline()) or child.name().startswith("warehouse-")
    ]


def kill_warehouses(driver: Driver) -> None:
    """All of the run's, as the system would."""
    for warehouse in warehouses(driver):
        warehouse.kill()


def lose_rows(driver: Driver, folder: Path) -> None:
    """Kill warehouses until one held rows: between two steps they are empty, and their death is free."""
    for _ in range(20):
        kill_warehouses(driver)
        steps = steps_done(folder)
        while steps_done(folder) < steps + 2:
            if STARTS_OVER in (folder / "events.jsonl").read_text():
                return
            assert driver.poll() is None, "the run ended before a row was lost"
            time.sleep(0.02)


def gone_within(session: int, seconds: float) -> list[str]:
    """Processes of the session that are still there after so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and session_processes(session):
        time.sleep(0.2)
    return session_processes(session)


def session_processes(session: int) -> list[str]:
    """Command lines of the processes that were started by a session's leader and still run."""
    found = []
    for process in psutil.process_iter(["pid", "cmdline"]):
        try:
            if os.getsid(process.pid) == session:
                found.append(" ".join(process.info["cmdline"] or []))
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found
