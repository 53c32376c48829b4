"""A run whose processes are killed: `rljob run`, what it tells, and its processes by role."""

import atexit
import contextlib
import json
import os
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

MORTAL = re.compile(
    r"(?:ray::)?(DeviceWorker|PromptFeeder|RewardWorker|warehouse|controller|WarehouseActor|ControllerActor)"
)
"""What processes call themselves, with Ray and without: the role of those that are started again."""
SAME = {"WarehouseActor": "warehouse", "ControllerActor": "controller"}
WAIT_SECONDS = 400.0
"""For what a run is to tell next, and for its end: longer than it looks for a death, and starts again."""
LOOK_SECONDS = 0.01


class StruckRun:
    """A job in a folder, which may be resumed there. environment: of its driver. elsewhere: processes beside
    the driver whose children are the run's: Ray's."""

    def __init__(
        self,
        job: Mapping[str, Any],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        elsewhere: Sequence[int] = (),
    ) -> None:
        self.folder, self._file = folder, folder.with_suffix(".yaml")
        self._file.write_text(yaml.safe_dump(dict(job)))
        self._environment, self._elsewhere = environment, elsewhere
        self._read, self._events = 0, list[dict[str, Any]]()
        self.driver: psutil.Popen | None = None

    def start(self) -> None:
        """Begin it, or resume what is there, as a process of its own session."""
        command = [str(Path(sys.executable).with_name("rljob")), "run", str(self._file)]
        command += ["--output", str(self.folder), *(["--resume"] if self.folder.exists() else [])]
        command += [] if self._environment else ["--local"]
        environment = os.environ | (self._environment or {})
        with self.folder.with_suffix(".txt").open("a") as said:
            self.driver = psutil.Popen(
                command, stdout=said, stderr=said, start_new_session=True, env=environment
            )
        atexit.register(_end, self.driver)  # its reaper ends the others

    @property
    def events(self) -> list[dict[str, Any]]:
        """All that were written by now; a line that is being written waits for its end."""
        file = self.folder / "events.jsonl"
        if file.exists():
            with file.open("rb") as opened:
                opened.seek(self._read)
                whole, end, _ = opened.read().rpartition(b"\n")
            self._read += len(whole) + len(end)
            for line in whole.splitlines():
                with contextlib.suppress(json.JSONDecodeError):  # a killed driver has torn it
                    self._events.append(json.loads(line))
        return self._events

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        """Events of one kind, in order."""
        return [event for event in self.events if event["kind"] == kind]

    def wait(self, what: str, found: Callable[[], Any]) -> Any:
        """What `found` returns as soon as that is true. Raises AssertionError where the run has ended, or
        after WAIT_SECONDS."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            ended = self.code is not None  # before the look: what it wrote last counts
            if result := found():
                return result
            assert not ended, f"{self.folder}: ended with {self.code}, without {what}: {self.last}"
            assert time.monotonic() < deadline, f"{self.folder}: no {what} in {WAIT_SECONDS:g} s"
            time.sleep(LOOK_SECONDS)

    def wait_for_step(self, more: int = 1) -> dict[str, Any]:
        """The event of the last of so many steps from now on."""
        known = len(self.of_kind("step"))
        return self.wait("step", lambda: self.of_kind("step")[known:][more - 1 :])[0]

    @property
    def code(self) -> int | None:
        """Its driver's exit status; None while it lives."""
        assert self.driver is not None, f"{self.folder}: never started"
        return self.driver.poll()

    @property
    def last(self) -> str:
        """What the run told last."""
        said = self.folder.with_suffix(".txt").read_text().splitlines()
        return "\n".join(said[-20:])

    def finish(self, *, code: int = 0) -> None:
        """Wait for its end, which must be this."""
        assert self.driver is not None, f"{self.folder}: never started"
        found = self.driver.wait(WAIT_SECONDS)
        assert found == code, f"{self.folder}: ended with {found}: {self.last}"

    def interrupt(self) -> None:
        """End it with a checkpoint."""
        assert self.driver is not None, f"{self.folder}: never started"
        self.driver.send_signal(signal.SIGINT)
        self.finish(code=3)

    def kill_driver(self) -> float:
        """SIGKILL; returns when, in unix seconds. The reaper ends its workers."""
        assert self.driver is not None, f"{self.folder}: never started"
        self.driver.kill()
        at = time.time()
        self.driver.wait(WAIT_SECONDS)
        return at

    def kill(self, process: psutil.Process) -> float:
        """SIGKILL to one of `mortal`; returns when, in unix seconds."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
        return time.time()

    def mortal(self) -> dict[str, list[psutil.Process]]:
        """Its processes that live, by the role of those that are started again; not their children."""
        found: dict[str, list[psutil.Process]] = defaultdict(list)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                role, above = _role(process), process.parent()
                alive = process.status() != psutil.STATUS_ZOMBIE
                if role and alive and above is not None and _role(above) != role:
                    found[role].append(process)
        return found

    def processes(self) -> list[psutil.Process]:
        """All that the driver has started, and those of Ray."""
        assert self.driver is not None, f"{self.folder}: never started"
        found: list[psutil.Process] = []
        for pid in (self.driver.pid, *self._elsewhere):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += psutil.Process(pid).children(recursive=True)
        return found

    def left(self) -> int:
        """Processes of its session that outlive it, after a while."""
        assert self.driver is not None, f"{self.folder}: never started"
        deadline = time.monotonic() + 30
        while (number := _in_session(self.driver.pid)) and time.monotonic() < deadline:
            time.sleep(0.2)
        return number


def _role(process: psutil.Process) -> str:
    said = " ".join(process.cmdline())
    role = MORTAL.match(said if said.startswith("ray::") else process.name())
    return SAME.get(role[1], role[1]) if role else ""


def _in_session(session: int) -> int:
    found = 0
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.Error):
            same = os.getsid(process.pid) == session
            found += same and process.status() != psutil.STATUS_ZOMBIE
    return found


def _end(driver: psutil.Popen) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        driver.kill()
