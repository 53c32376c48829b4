"""Hours of training under random deaths: what its processes keep, and whether anything is lost.

Three runs at once, all of the same small job:

- steady: nobody disturbs it. Each process's resident memory (RSS) is a line through the last third of its
  time, since what it remembers by design is full only then: steps of the display (2,000), batches (1,000)
  and rows that are gone (50,000 of a warehouse and as many of the one that it stands by for).
- async: likewise, with a device for each role and weights that are a step old.
- disturbed: random processes of it are killed with SIGKILL: warehouses, controllers, feeder, reward worker,
  device workers, the driver. When it ends, it is resumed. No step may be missing, and its weights must be
  those that the steady run had after the same step, in every bit.

`--folder DIR --hours H` lets all three go on for so long from where the last part left them; what was seen
is kept in `DIR/soak.jsonl`. The figures are of all parts, those of memory of the longest. `--json FILE`
writes what `write_docs.py` shows.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml

from benchmarks import ROOT
from benchmarks.run.soak_run import Run, role_of
from benchmarks.support.figures import Figures

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
STEADY, ASYNC, DISTURBED = "steady", "async", "disturbed"
HOURS = 2.0
"""Of each run: six of training."""
STEPS = 1_000_000
"""More than there is time for."""
SECONDS_BETWEEN_DEATHS = (10.0, 60.0)
SAMPLES_A_PART = 200
"""Of each process's memory, but not more than one in LEAST_SAMPLE_SECONDS."""
LEAST_SAMPLE_SECONDS = 2.0
LEAST_SAMPLES = 20
"""Of a process whose memory is drawn a line through."""
LEAVE_SECONDS = 60.0
"""For the last processes of a run that has ended."""
CHECKPOINT_STEPS, EVALUATION_STEPS = 100, 500
KEPT = {STEADY: 300, ASYNC: 2, DISTURBED: 4}
"""Checkpoints: the disturbed run's last steps must be among the steady one's."""


def job_of(name: str) -> dict[str, Any]:
    """The quickstart with small batches and two copies of each row."""
    job: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    spec = job["spec"]
    spec |= {
        "steps": STEPS,
        "dock": {"warehouses": 2, "replicas": 2},
        "checkpoint": {"every": CHECKPOINT_STEPS, "keep": KEPT[name]},
        "evaluation": {"prompts": 64, "every": EVALUATION_STEPS},
    }
    spec["batch"] |= {"globalBatchSize": 4, "samplesPerPrompt": 8}
    spec["algorithm"] = {"name": "grpo", "params": {"clipHigh": 0.28}}
    spec["update"]["optimizer"]["learningRate"] = 3e-5
    if name == ASYNC:
        spec["placement"] = {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1}
        spec["flow"] = {"mode": "async", "maxStaleness": 1}
    return job


class Record:
    """What was seen in all parts: a file of JSON lines, each of which says what it is and of which part."""

    def __init__(self, file: Path) -> None:
        self._file, self._lock = file, threading.Lock()
        self.lines: list[dict[str, Any]] = []
        if file.exists():
            self.lines = [json.loads(line) for line in file.read_text().splitlines()]
        self.part = max((line["part"] for line in self.lines), default=0)

    def add(self, what: str, run: str, **facts: Any) -> None:
        """Take down what was seen of a run."""
        line = {"what": what, "part": self.part, "run": run, **facts}
        with self._lock, self._file.open("a") as file:
            self.lines.append(line)
            file.write(json.dumps(line) + "\n")

    def hours(self, run: str) -> float:
        """Of all parts."""
        last = {line["part"]: line["hours"] for line in self.of("hours", run)}
        return sum(last.values())

    def of(self, what: str, run: str) -> list[dict[str, Any]]:
        """All lines that say this of it."""
        return [line for line in self.lines if (line["what"], line["run"]) == (what, run)]

    def growth(self, run: str) -> dict[str, tuple[float, float]]:
        """MiB at the end and growth in MiB an hour over the last third of the longest part, of each role's
        steepest process."""
        planned = {line["part"]: line["hours"] for line in self.of("planned", run)}
        longest = max(planned, key=lambda part: planned[part], default=0)
        samples: dict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)
        for line in self.of("memory", run):  # a run that ends reads its whole log, for the report
            if line["part"] == longest and line["hours"] < planned[longest]:
                samples[line["role"], line["process"]].append((line["hours"], line["mib"]))
        found: dict[str, tuple[float, float]] = {}
        for (role, _), pairs in samples.items():
            if len(pairs) < LEAST_SAMPLES:
                continue
            last = np.asarray(pairs[2 * len(pairs) // 3 :])
            slope = round(float(np.polyfit(last[:, 0], last[:, 1], 1)[0]), 3) + 0.0  # no -0
            if role not in found or slope > found[role][1]:
                found[role] = (float(last[-1, 1]), slope)
        return found


def leave_alone(run: Run, until: float, stop: threading.Event) -> None:
    """A run that nobody disturbs must live until it is asked to stop."""
    run.start()
    while run.lives() and time.monotonic() < until and not stop.is_set():
        run.go_on(min(until, time.monotonic() + 1))
    assert run.lives(), f"{run.folder}: ended, though nobody disturbed it"
    run.interrupt()


def disturb(run: Run, until: float, stop: threading.Event, record: Record, seed: int) -> None:
    """Kill one process after the other; resume the run whenever it ends."""
    draw = random.Random(seed + record.part)
    run.start()
    while time.monotonic() < until and not stop.is_set():
        pause = time.monotonic() + draw.uniform(*SECONDS_BETWEEN_DEATHS)
        run.go_on(min(until, pause))
        if run.lives() and time.monotonic() < until:
            record.add("death", DISTURBED, role=run.kill_one(draw))
            run.go_on(time.monotonic() + draw.uniform(*SECONDS_BETWEEN_DEATHS))
        if not run.lives():
            began = time.monotonic()
            run.start()
            record.add("resumed", DISTURBED, seconds=time.monotonic() - began)
    if not run.lives():
        run.start()
    run.interrupt()


@contextmanager
def memory_taken(record: Record, runs: dict[str, Run], seconds: float) -> Iterator[None]:
    """Take the time and each process's resident memory so often while the body runs."""
    ended, began = threading.Event(), time.monotonic()

    def take() -> None:
        while not ended.wait(seconds):
            hours = (time.monotonic() - began) / 3600
            for name, run in runs.items():
                record.add("hours", name, hours=hours)
                if name == DISTURBED:  # none of its processes lives for long
                    continue
                for pid, role in run.processes().items() if run.lives() else ():
                    try:
                        memory = psutil.Process(pid).memory_info()
                    except psutil.Error:  # it has just ended
                        continue
                    facts = {"mib": memory.rss / 2**20, "shared": memory.shared / 2**20}
                    record.add("memory", name, role=role, process=pid, hours=hours, **facts)

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(LEAVE_SECONDS)


def go_on(record: Record, runs: dict[str, Run], hours: float, seed: int) -> None:
    """All runs at once for so long; the first failure ends the others."""
    record.part += 1
    before, stop = shared_files(), threading.Event()
    until = time.monotonic() + 3600 * hours
    for name in runs:
        record.add("planned", name, hours=hours)

    def guarded(work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except BaseException:
            stop.set()
            raise

    steady = [run for name, run in runs.items() if name != DISTURBED]
    sampling = max(LEAST_SAMPLE_SECONDS, 3600 * hours / SAMPLES_A_PART)
    with memory_taken(record, runs, sampling), ThreadPoolExecutor(len(runs)) as threads:
        ends = [threads.submit(guarded, leave_alone, run, until, stop) for run in steady]
        ends.append(threads.submit(guarded, disturb, runs[DISTURBED], until, stop, record, seed))
        try:
            wait(ends)
        except KeyboardInterrupt:  # each run writes a checkpoint, to go on from later
            stop.set()
    for end in ends:
        end.result()
    for name, run in runs.items():
        left = left_behind(run.sessions)
        record.add("end", name, left=left)
    record.add("shared", STEADY, left=sorted(shared_files() - before))


def report(record: Record, runs: dict[str, Run]) -> Figures:
    """The figures of all parts."""
    figures = Figures()
    figures.add("parts", record.part, "")
    for name, run in runs.items():
        run.look()
        ends = record.of("end", name)
        figures.add(f"{name}: hours", record.hours(name), "h")
        figures.add(f"{name}: steps", len(set(run.steps)), "")
        missing = {*range(1, max(run.steps) + 1)} - set(run.steps)
        figures.add(f"{name}: steps that are missing", len(missing), "", 0)
        figures.add(
            f"{name}: processes that are left", sum(len(line["left"]) for line in ends), "", 0
        )
    for name in (STEADY, ASYNC):
        for role, (mib, slope) in sorted(record.growth(name).items()):
            figures.add(f"{name}, {role}: memory at the end", mib, "MiB")
            figures.add(f"{name}, {role}: memory grows in an hour", slope, "MiB", 1.0)
    deaths = Counter(line["role"] for line in record.of("death", DISTURBED))
    for role, number in sorted(deaths.items()):
        figures.add(f"deaths: {role}", number, "")
    away = [line["seconds"] for line in record.of("resumed", DISTURBED)]
    figures.add("times that the disturbed run was resumed", len(away), "")
    figures.add("longest from there to a step", max(away, default=0.0), "s")
    steps = runs[DISTURBED].steps
    figures.add("steps that were done again", len(steps) - len(set(steps)), "")
    steady, disturbed = runs[STEADY].weights(), runs[DISTURBED].weights()
    both = sorted(steady.keys() & disturbed.keys())
    others = [step for step in both if steady[step].read_bytes() != disturbed[step].read_bytes()]
    figures.add("the last step whose weights are compared", max(both, default=0), "", least=1)
    figures.add("weights other than the steady run's", len(others), "", 0)
    shared = sum(len(line["left"]) for line in record.of("shared", STEADY))
    figures.add("files in /dev/shm that are left", shared, "", 0)
    return figures


def left_behind(sessions: Container[int]) -> list[str]:
    """Processes of sessions whose leaders are gone, after a while."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while left := [role for p in psutil.process_iter() if (role := _role_in(p, sessions))]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.5)
    return []


def _role_in(process: psutil.Process, sessions: Container[int]) -> str:
    """What a process of these sessions is; "" for another's and for one that has ended."""
    try:
        ours = os.getsid(process.pid) in sessions and process.status() != psutil.STATUS_ZOMBIE
        return role_of(process.cmdline()) if ours else ""
    except (ProcessLookupError, psutil.Error):
        return ""


def shared_files() -> set[str]:
    """What lies in shared memory."""
    return {path.name for path in Path("/dev/shm").iterdir()}


def main() -> None:
    """Let all runs go on, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three minutes")
    parser.add_argument("--hours", type=float, default=HOURS, help="for which each run goes on")
    parser.add_argument("--report", action="store_true", help="only show what --folder has so far")
    parser.add_argument("--folder", type=Path, help="where the runs stay, to go on with later")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--seed", type=int, default=1, help="of the deaths")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = (options.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        record = Record(folder / "soak.jsonl")
        runs = {name: Run(job_of(name), folder / name) for name in (STEADY, ASYNC, DISTURBED)}
        if not options.report:
            go_on(record, runs, 0.05 if options.quick else options.hours, options.seed)
        figures = report(record, runs)
    if options.json is not None:
        facts = {"seed": options.seed}
        figures.write(options.json, packages=["rljob", "torch", "ray"], facts=facts)
    missed = [f.name for f in figures.missed() if f.limit == 0 or not options.quick]
    if missed:  # in minutes, nothing is full yet that is remembered
        sys.exit(f"missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
