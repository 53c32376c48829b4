"""A long run under random deaths: what its processes keep, and whether anything is lost.

First a run that nobody disturbs: each process's own memory, by a line through the second half of its time.
Then the same job, of fewer steps, while random processes of it are killed with SIGKILL: warehouses,
controllers, feeder, reward worker, device workers, the driver. A run that ends is resumed. Every step must
be done, and the weights at the end must be those that the first run had there, in every bit. `--json FILE`
writes what `write_docs.py` shows.
"""

import argparse
import atexit
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from dock_churn import own_mib
from figures import Figures

QUICKSTART = Path(__file__).resolve().parent.parent / "examples" / "quickstart.yaml"
MORTAL = ("WarehouseActor", "ControllerActor", "PromptFeeder", "RewardWorker", "DeviceWorker")
DRIVER = "driver"
SECONDS_BETWEEN_DEATHS = (5.0, 30.0)
SAMPLE_SECONDS = 5.0
LEAST_SAMPLES = 20
"""Of a process whose memory is drawn a line through."""
WAIT_SECONDS = 600.0
"""For the next step."""
LEAVE_SECONDS = 60.0
"""For the last processes of a run that has ended."""
STEPS, DISTURBED_STEPS = 60_000, 6_000
"""Of the two runs: about six hours together, where a step takes 0.3 s."""
CHECKPOINT_STEPS, EVALUATION_STEPS = 50, 500


def job_of(steps: int, kept: int) -> dict[str, Any]:
    """The quickstart with small batches and two copies of each row. kept: checkpoints."""
    job: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    spec = job["spec"]
    spec |= {
        "steps": steps,
        "dock": {"warehouses": 2, "replicas": 2},
        "checkpoint": {"every": CHECKPOINT_STEPS, "keep": kept},
        "evaluation": {"prompts": 64, "every": EVALUATION_STEPS},
    }
    spec["batch"] |= {"globalBatchSize": 4, "samplesPerPrompt": 4}
    spec["algorithm"] = {"name": "grpo", "params": {"clipHigh": 0.28}}
    spec["update"]["optimizer"]["learningRate"] = 3e-5
    return job


class Run:
    """`rljob run` in a folder, as often as it takes.

    steps: numbers of those that were done, repeated ones too. seconds_away: from each resumption to its first
    step. sessions: of all drivers.
    """

    def __init__(self, job: dict[str, Any], folder: Path) -> None:
        self.file, self.folder = folder.with_suffix(".yaml"), folder
        self.file.write_text(yaml.safe_dump(job))
        self.steps: list[int] = []
        self.seconds_away: list[float] = []
        self.sessions: list[int] = []
        self._read = 0

    def start(self, *options: str) -> None:
        """Start or resume it as a process of its own session."""
        command = [str(Path(sys.executable).with_name("rljob")), "run", str(self.file)]
        self.process = psutil.Popen(
            [*command, "--output", str(self.folder), *options],
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.sessions.append(self.process.pid)
        atexit.register(_kill, self.process)  # its guardian ends the others

    def lives(self) -> bool:
        """Whether its driver does."""
        return self.process.poll() is None

    def failed(self) -> bool:
        """Whether it has ended before its time."""
        return self.process.poll() not in (None, 0)

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

    def go_on(self, seconds: float) -> None:
        """Look on for so long, or until it has ended; steps must be done meanwhile."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.lives():
            self.wait_for_step()

    def resume(self) -> None:
        """Start it again, and wait for its next step."""
        began = time.monotonic()
        self.start("--resume")
        self.wait_for_step()
        self.seconds_away.append(time.monotonic() - began)

    def processes(self) -> dict[int, str]:
        """Roles of all its processes, by number."""
        found = {self.process.pid: DRIVER}
        for child in self.process.children(recursive=True):
            try:
                found[child.pid] = role_of(child.cmdline())
            except psutil.Error:  # it has just ended
                continue
        return found

    def model(self, step: int) -> bytes:
        """The weights of a checkpoint."""
        folder = self.folder / "checkpoints" / f"step-{step:06d}" / "model"
        return (folder / "model.safetensors").read_bytes()


def role_of(words: list[str]) -> str:
    """What a process of a run is: Ray's name of the actor, else its program."""
    line = " ".join(words)
    if actor := re.search(r"ray::(?:IDLE|(\w+))", line):
        return actor[1] or "idle worker"
    if module := re.search(r"rljob_runtime\.([\w.]+)|([\w-]+)\.py", line):
        return module[1] or module[2]
    return Path(words[0]).name if words else "ended"


class MemorySamples:
    """Each process's own memory over time, taken by a thread."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._samples: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take them while the body runs."""
        ended = threading.Event()
        thread = threading.Thread(target=self._take, args=(ended,))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(WAIT_SECONDS)

    def _take(self, ended: threading.Event) -> None:
        while not ended.wait(SAMPLE_SECONDS):
            for pid, role in self._run.processes().items() if self._run.lives() else ():
                try:
                    sample = (time.monotonic(), own_mib(pid))
                except (OSError, ValueError):  # it has just ended
                    continue
                self._samples[role, pid].append(sample)

    def lines(self) -> dict[str, tuple[float, float]]:
        """MiB at the end and growth in MiB an hour over the second half, of each role's steepest process."""
        found: dict[str, tuple[float, float]] = {}
        for (role, _), samples in self._samples.items():
            if len(samples) < LEAST_SAMPLES:
                continue
            half = np.asarray(samples[len(samples) // 2 :])
            slope = 3600 * float(np.polyfit(half[:, 0] - half[0, 0], half[:, 1], 1)[0])
            if role not in found or slope > found[role][1]:
                found[role] = (float(half[-1, 1]), slope)
        return found


def measure_quiet(figures: Figures, run: Run) -> None:
    """Memory of a run that nobody disturbs."""
    memory = MemorySamples(run)
    began = time.monotonic()
    run.start()
    with memory.taken():
        run.go_on(float("inf"))
    run.look()
    assert not run.failed(), f"the quiet run ended with {run.process.returncode}"
    figures.add("hours of the quiet run", (time.monotonic() - began) / 3600, "h")
    figures.add("its steps", len(run.steps), "")
    for role, (mib, slope) in sorted(memory.lines().items()):
        figures.add(f"{role}: memory at the end", mib, "MiB")
        figures.add(f"{role}: memory grows in an hour", slope, "MiB", 1.0)


def measure_deaths(figures: Figures, run: Run, quiet: Run, steps: int, seed: int) -> None:
    """The same job to its end, whoever dies."""
    draw, deaths = random.Random(seed), Counter[str]()
    began = time.monotonic()
    run.start()
    run.wait_for_step()
    while run.lives() or run.failed():
        if run.failed():
            run.resume()
        run.go_on(draw.uniform(*SECONDS_BETWEEN_DEATHS))
        if run.lives():
            deaths[kill_one(run, draw)] += 1
            run.go_on(draw.uniform(*SECONDS_BETWEEN_DEATHS))
    run.look()
    figures.add("hours of the disturbed run", (time.monotonic() - began) / 3600, "h")
    for role, number in sorted(deaths.items()):
        figures.add(f"deaths: {role}", number, "")
    figures.add("times that it was resumed", len(run.seconds_away), "")
    figures.add("longest from there to a step", max(run.seconds_away, default=0.0), "s")
    figures.add("steps that were done again", len(run.steps) - len(set(run.steps)), "")
    figures.add("steps that are missing", len({*range(1, steps + 1)} - set(run.steps)), "", 0)
    other = run.model(steps) != quiet.model(steps)
    figures.add("weights other than the quiet run's", other, "", 0)


def kill_one(run: Run, draw: random.Random) -> str:
    """Kill a process of a random role. Returns the role."""
    by_role = defaultdict(list)
    for pid, role in run.processes().items():
        if role in (*MORTAL, DRIVER):
            by_role[role].append(pid)
    role = draw.choice(sorted(by_role))
    with contextlib.suppress(ProcessLookupError):
        os.kill(draw.choice(sorted(by_role[role])), signal.SIGKILL)
    return role


def _kill(process: psutil.Popen) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def left_behind(sessions: Container[int]) -> list[str]:
    """Processes of sessions whose leaders are gone, after a while."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while left := [p for p in psutil.process_iter() if _session(p.pid) in sessions]:
        if time.monotonic() > deadline:
            return [role_of(process.cmdline()) for process in left]
        time.sleep(0.5)
    return []


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return 0


def _event(line: bytes) -> dict[str, Any]:
    """An event, or nothing for a line that a killed run has torn."""
    try:
        event: dict[str, Any] = json.loads(line)
    except json.JSONDecodeError:
        return {}
    return event


def shared_files() -> set[str]:
    """What lies in shared memory."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def main() -> None:
    """Both runs one after the other, and what they leave."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few hundred steps")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the quiet run")
    parser.add_argument("--disturbed-steps", type=int, default=DISTURBED_STEPS, metavar="STEPS")
    parser.add_argument("--seed", type=int, default=1, help="of the deaths")
    options = parser.parse_args()
    steps, disturbed_steps = options.steps, options.disturbed_steps
    if options.quick:
        steps, disturbed_steps = 200, 100
    assert steps >= disturbed_steps and disturbed_steps % CHECKPOINT_STEPS == 0
    figures, before = Figures(), shared_files()
    with tempfile.TemporaryDirectory() as place:
        quiet, disturbed = (
            Run(
                job_of(number, kept=steps // CHECKPOINT_STEPS if name == "quiet" else 2),
                Path(place) / name,
            )
            for name, number in (("quiet", steps), ("disturbed", disturbed_steps))
        )
        measure_quiet(figures, quiet)
        measure_deaths(figures, disturbed, quiet, disturbed_steps, options.seed)
        left = left_behind({*quiet.sessions, *disturbed.sessions})
    figures.add("processes that are left", len(left), "", 0)
    figures.add("files in /dev/shm that are left", len(shared_files() - before), "", 0)
    if options.json is not None:
        facts = {"steps": steps, "disturbed steps": disturbed_steps, "seed": options.seed}
        figures.write(options.json, packages=["rljob", "torch", "ray"], facts=facts)


if __name__ == "__main__":
    main()
