"""Many deaths in one run, of every role that is started again, beside the same run that nobody disturbs.

Called by `__main__`.
"""

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.recovery.jobs import Machine, job_of
from benchmarks.recovery.struck_run import StruckRun
from rljob_runtime.record.event_types import StepEvent
from rljob_runtime.record.events import read_events

FIRST = 3
"""Steps before the first death, and after the last: what the run holds is counted there."""
SECOND_ONE = 0.2
"""Share of the deaths that another one follows before the run has recovered."""
DEVICE, DEVICES = "DeviceWorker", 0.4
"""Share of the deaths that devices die."""
LATER_SECONDS = 2.0
"""At most, after the first one."""
CHECKPOINT_STEPS = 20
TIMED = ("tokens_per_second", "tps_eq5", "eta_seconds", "memory/", "seconds")
"""Of a step's metrics those that are not computed of its samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a run holds at a moment. files: open ones of its driver. shared: files in /dev/shm."""

    processes: int
    files: int
    threads: int
    shared: int


def spread(deaths: int, seed: int, *, steps_between: int = 2) -> Iterator[tuple[int, float, bool]]:
    """Of each blow: steps to wait for, the part of a step's time that it comes after, whether a second one
    follows."""
    draw, left = random.Random(seed), deaths
    while left > 0:
        twice = left > 1 and draw.random() < SECOND_ONE
        left -= 1 + twice
        yield draw.randint(1, steps_between), draw.uniform(0.0, 1.2), twice


def deadly_job(place: Machine, deaths: int, seed: int) -> dict[str, Any]:
    """As many steps as they need, on devices of which two train and two generate."""
    separated = {"mode": "separated", "updateDevices": 2, "rolloutDevices": 2}
    job = job_of(
        place.accelerator(4),
        {"data": 2},
        steps=2 * FIRST + sum(steps + 2 for steps, *_ in spread(deaths, seed)),
        placement=separated,
        dock={"warehouses": 2, "replicas": 2},
        checkpoint={"every": CHECKPOINT_STEPS, "keep": 1000},
    )
    job["spec"]["batch"]["globalBatchSize"] = 4
    return job


def strike(run: StruckRun, deaths: int, seed: int, killed: Counter[str]) -> tuple[Held, Held]:
    """Kill so many of its processes. killed: counts them by role. Returns what it held before and after."""
    draw = random.Random(seed + 1)
    run.wait_for_step(FIRST)
    before = held(run)
    for steps, part, twice in spread(deaths, seed):
        step = run.wait_for_step(steps)
        time.sleep(part * step["seconds"])
        killed[_kill_one(run, draw)] += 1
        if twice:
            time.sleep(draw.uniform(0.0, LATER_SECONDS))
            killed[_kill_one(run, draw)] += 1
    run.wait_for_step(FIRST - 1)
    return before, held(run)


def _kill_one(run: StruckRun, draw: random.Random) -> str:
    """A device, or one of another role that lives. Returns the role."""
    mortal = run.wait("process", run.mortal)
    others = sorted(mortal.keys() - {DEVICE})
    role = DEVICE if draw.random() < DEVICES or not others else draw.choice(others)
    if not mortal[role]:  # all devices are just being started again
        role = draw.choice(others)
    run.kill(draw.choice(mortal[role]))
    return role


def held(run: StruckRun) -> Held:
    """Now."""
    driver = psutil.Process(run.driver.pid if run.driver else 0)
    return Held(
        processes=sum("ray::IDLE" not in process.cmdline() for process in run.processes()),
        files=driver.num_fds(),
        threads=driver.num_threads(),
        shared=sum(1 for _ in Path("/dev/shm").iterdir()),
    )


def growth(before: Held, after: Held) -> dict[str, int]:
    """By how much more is held than before; less is none."""
    earlier = asdict(before)
    return {name: max(0, number - earlier[name]) for name, number in asdict(after).items()}


def differences(struck: StruckRun, quiet: StruckRun) -> dict[str, int]:
    """What tells the run that was struck from the other one; every number is to be 0.

    A sample that was trained on twice, or not at all, changes the figures of its step and all weights after.
    """
    told, expected = (_figures(run) for run in (struck, quiet))
    raw = Counter(event["step"] for event in struck.of_kind("step"))
    undone = sum(
        max(0, _step_before(struck.events, place) - event["rolled_back_to"])
        for place, event in enumerate(struck.events)
        if event["kind"] == "recovery" and event.get("rolled_back_to") is not None
    )
    saved, wanted = _weights(struck), _weights(quiet)
    return {
        "steps that are missing": len(expected.keys() - told.keys()),
        "steps that were trained again, and not undone": sum(raw.values()) - len(raw) - undone,
        "steps with other figures": sum(told.get(step) != of for step, of in expected.items()),
        "steps whose samples did not all count once": _miscounted(struck),
        "checkpoints with other bits": sum(saved.get(name) != of for name, of in wanted.items()),
    }


def _figures(run: StruckRun) -> dict[int, dict[str, Any]]:
    """Of each step that counts, its metrics that do not depend on time."""
    events = read_events(run.folder / "events.jsonl")
    steps = [event for event in events if isinstance(event, StepEvent)]
    return {
        each.step: {
            name: value
            for name, value in each.metrics.items()
            if not any(word in name for word in TIMED)
        }
        for each in steps
    }


def _step_before(events: list[dict[str, Any]], place: int) -> int:
    """The last step that was told before this event."""
    return next((e["step"] for e in reversed(events[:place]) if e["kind"] == "step"), 0)


def _miscounted(run: StruckRun) -> int:
    """Steps that nobody died in, and in which the update was not done with each sample once."""
    (started, *_), cut, found = run.of_kind("run_started"), False, 0
    rows = started["global_batch_size"] * started["samples_per_prompt"]
    for event in run.events:
        cut |= event["kind"] == "recovery" or "starts over" in event.get("message", "")
        if event["kind"] == "dock":
            found += not cut and event["states"]["update"]["rows"] != rows
            cut = False
    return found


def _weights(run: StruckRun) -> dict[str, bytes]:
    """Of each checkpoint."""
    files = (run.folder / "checkpoints").glob("step-*/model/model.safetensors")
    return {file.parent.parent.name: file.read_bytes() for file in files}
