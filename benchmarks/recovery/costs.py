"""What one death costs: seconds from the SIGKILL to the next step, beyond what a step takes. Called by
`__main__`."""

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.recovery.jobs import Machine, job_of
from benchmarks.recovery.struck_run import StruckRun

LAYOUTS: Mapping[str, Mapping[str, int]] = {
    "data 2, from its peer": {"data": 2},
    "data 2 with ZeRO 1, from the checkpoint": {"data": 2, "zero": 1},
    "tensor 2, data 2, from its peer": {"data": 2, "tensor": 2},
}
RESUMED = "data 2, a new process resumes from the checkpoint"
CHECKPOINT_STEPS = 5
WARM_UP_STEPS, STEPS_BETWEEN = 4, 4
MANY_STEPS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one death, seconds beyond a step. to_step: to the next finished one. to_place: to the end of the
    step that was cut. parts: of to_step."""

    to_step: float
    to_place: float
    parts: Mapping[str, float]


def costs(place: Machine, name: str, deaths: int, seed: int) -> list[Cost]:
    """One run in which a device that trains is killed so often; of RESUMED, the whole run."""
    parallelism = LAYOUTS.get(name, {"data": 2})
    devices = parallelism["data"] * parallelism.get("tensor", 1)
    run = place.run(
        name.partition(",")[0].replace(" ", "-") + f"-{len(name)}",
        job_of(
            place.accelerator(devices),
            parallelism,
            steps=MANY_STEPS,
            checkpoint={"every": CHECKPOINT_STEPS, "keep": 2},
        ),
    )
    run.start()
    last, draw = run.wait_for_step(WARM_UP_STEPS), random.Random(seed)
    kills = []
    for _ in range(deaths):
        time.sleep(draw.random() * last["seconds"])
        cut = run.of_kind("step")[-1]["step"] + 1
        kills.append(_kill(run, draw, resumes=name == RESUMED))
        run.wait(f"step {cut}", partial(_again, run, len(run.of_kind("step")), cut))
        last = run.wait_for_step(STEPS_BETWEEN)
    run.interrupt()
    return list(_costs(run.events, kills))


def _again(run: StruckRun, known: int, step: int) -> bool:
    """Whether the run has come so far after the step events that are known."""
    return any(event["step"] >= step for event in run.of_kind("step")[known:])


def _kill(run: StruckRun, draw: random.Random, *, resumes: bool) -> float:
    """Returns when, once what is cut has been begun again."""
    if resumes:
        at = run.kill_driver()
        run.start()
        run.wait("new process", lambda: run.of_kind("run_started")[-1]["time"] > at)
        return at
    known = len(run.of_kind("recovery"))
    at = run.kill(draw.choice(run.mortal()["DeviceWorker"]))
    run.wait("recovery", lambda: run.of_kind("recovery")[known:])
    return at


def _costs(events: Sequence[Mapping[str, Any]], kills: Sequence[float]) -> Iterator[Cost]:
    steps = [event for event in events if event["kind"] == "step"]
    for at, until in zip(kills, [*kills[1:], float("inf")], strict=True):
        begun = next(
            e for e in events if e["kind"] in ("recovery", "run_started") and e["time"] > at
        )
        cut = max(step["step"] for step in steps if step["time"] < at) + 1
        after = [step for step in steps if begun["time"] < step["time"] < until]
        usual = median(step["seconds"] for step in after[1:])
        to_step, to_place = (
            next(step["time"] for step in after if step["step"] >= least) - at - usual
            for least in (0, cut)
        )
        parts = dict(begun.get("parts", {}))
        if parts:
            noticed = begun["time"] - begun["seconds"] - at
            parts = {"notice": noticed, **parts}
            parts["first step, beyond another"] = to_step - noticed - begun["seconds"]
        yield Cost(to_step=to_step, to_place=to_place, parts=parts)
