"""One run of a soak: `rljob run` in a folder, as often as it takes, and the processes that it consists of."""

import atexit
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import yaml

DRIVER = "driver"
MORTAL = ("WarehouseActor", "ControllerActor", "PromptFeeder", "RewardWorker", "DeviceWorker")
ASKED_TO_STOP = 3
"""The exit status of a run that was interrupted, and has written a checkpoint."""
WAIT_SECONDS = 600.0
"""For the next step, and for an interrupted run's end."""


class Run:
    """A job in a folder.

    steps: numbers of those that were done, repeated ones too. sessions: of all drivers.
    """

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        self.file, self.folder = folder.with_suffix(".yaml"), folder
        self.file.write_text(yaml.safe_dump(job))
        self.steps: list[int] = []
        self.sessions: list[int] = []
        self.process: psutil.Popen | None = None
        self._read = 0

    def start(self) -> None:
        """Begin it, or resume what is there, as a process of its own session; wait for its next step."""
        self.look()
        command = [str(Path(sys.executable).with_name("rljob")), "run", str(self.file)]
        resume = ["--resume"] if self.folder.exists() else []
        self.process = psutil.Popen(
            [*command, "--output", str(self.folder), *resume],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.sessions.append(self.process.pid)
        atexit.register(_kill, self.process)  # its reaper ends the others
        self.wait_for_step()

    def lives(self) -> bool:
        """Whether its driver does."""
        return self.process is not None and self.process.poll() is None

    def look(self) -> None:
        """Read the events that are new; a line that is being written waits for its end."""
        file = self.folder / "events.jsonl"
        if not file.exists():
            return
        with file.open("rb") as opened:
            opened.seek(self._read)
            whole, end, _ = opened.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        for line in whole.splitlines():
            event = _event(line)
            if event.get("kind") == "step":
                self.steps.append(event["step"])

    def wait_for_step(self) -> None:
        """Until there is one more, or the run has ended."""
        self.look()
        known, deadline = len(self.steps), time.monotonic() + WAIT_SECONDS
        while len(self.steps) == known and self.lives():
            assert time.monotonic() < deadline, f"{self.folder}: no step in {WAIT_SECONDS:g} s"
            time.sleep(0.2)
            self.look()

    def go_on(self, until: float) -> None:
        """Look on until this time, or until it has ended; steps must be done meanwhile."""
        while time.monotonic() < until and self.lives():
            self.wait_for_step()

    def interrupt(self) -> None:
        """Ask it to stop with a checkpoint."""
        assert self.process is not None, f"{self.folder}: never started"
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(WAIT_SECONDS)
        assert code == ASKED_TO_STOP, f"{self.folder}: ended with {code} when asked to stop"
        self.look()

    def processes(self) -> dict[int, str]:
        """Roles of all its processes, by number."""
        if self.process is None:
            return {}
        found = {self.process.pid: DRIVER}
        with contextlib.suppress(psutil.Error):  # it has just ended
            for child in self.process.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    found[child.pid] = role_of(child.cmdline())
        return found

    def kill_one(self, draw: random.Random) -> str:
        """Kill a process of a random role. Returns the role."""
        by_role = defaultdict(list)
        for pid, role in self.processes().items():
            if role in (*MORTAL, DRIVER):
                by_role[role].append(pid)
        role = draw.choice(sorted(by_role))
        with contextlib.suppress(ProcessLookupError):
            os.kill(draw.choice(sorted(by_role[role])), signal.SIGKILL)
        return role

    def weights(self) -> dict[int, Path]:
        """Of its checkpoints, by step."""
        files = (self.folder / "checkpoints").glob("step-*/model/model.safetensors")
        return {int(file.parent.parent.name.removeprefix("step-")): file for file in files}


def role_of(words: list[str]) -> str:
    """What a process of a run is: Ray's name of the actor, else its program."""
    line = " ".join(words)
    if actor := re.search(r"ray::(?:IDLE|(\w+))", line):
        return actor[1] or "idle worker"
    program = Path(words[0]).name if words else "ended"
    module = re.search(r"rljob_runtime\.(?:\w+\.)*(\w+)|([\w-]+)\.py", line)
    if module and program.startswith("python"):
        return module[1] or module[2]
    return program


def _kill(process: psutil.Popen) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def _event(line: bytes) -> dict[str, Any]:
    """An event, or nothing for a line that a killed run has torn."""
    try:
        event: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return event
