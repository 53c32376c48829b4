"""Steps a minute with a death every so many steps, beside the same run without any. Called by `__main__`."""

import random
import time
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

from benchmarks.recovery.jobs import Machine, job_of
from benchmarks.recovery.struck_run import StruckRun

Course = list[tuple[float, int]]
SIDES = ("undisturbed", "in place", "from the checkpoint, in place", "a new process")
STEPS_A_DEATH = 50
PROMPTS = 64
"""Of a step, so that it takes about a second; steps of real jobs take minutes."""
CHECKPOINT_STEPS = 20
"""Steps 50, 100 and 150 are in the middle between two checkpoints, or at one."""


def course(place: Machine, side: str, turn: int, deaths: int) -> Course:
    """One run with so many deaths, or as many steps without: (seconds since the first step's end, step), of
    all steps that were finished. A device that trains is killed, or of a run that a new process resumes all
    that it has."""
    zero = {"zero": 1} if side == "from the checkpoint, in place" else {}
    run = place.run(
        f"{side.replace(' ', '-').replace(',', '')}-{turn}",
        job_of(
            place.accelerator(2),
            {"data": 2, **zero},
            prompts=PROMPTS,
            steps=STEPS_A_DEATH * (deaths + 1),
            checkpoint={"every": CHECKPOINT_STEPS},
        ),
    )
    draw = random.Random(turn)
    run.start()
    for death in range(deaths if side != SIDES[0] else 0):
        after = STEPS_A_DEATH * (death + 1)
        step = run.wait(f"step {after}", partial(_step, run, after))
        time.sleep(draw.random() * step["seconds"])
        if side == SIDES[-1]:
            run.kill_driver()
            run.start()
        else:
            run.kill(draw.choice(run.mortal()["DeviceWorker"]))
    run.wait("end", lambda: run.code is not None)
    run.finish()
    began = run.of_kind("step")[0]["time"]
    return [(round(step["time"] - began, 3), step["step"]) for step in run.of_kind("step")]


def kept(steps: Course) -> float:
    """What share of its time a run would take if all its steps took as long as its usual one: what deaths
    cost, whatever else the machine did meanwhile."""
    seconds = [after - before for (before, _), (after, _) in pairwise(steps)]
    (began, first), (ended, last) = steps[0], steps[-1]
    return (last - first) * median(seconds) / (ended - began)


def _step(run: StruckRun, number: int) -> Mapping[str, Any] | None:
    return next((step for step in run.of_kind("step") if step["step"] == number), None)
