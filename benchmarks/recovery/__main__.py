"""What it costs a run that its processes die, and whether it changes anything else.

- `cost`: seconds from the SIGKILL of a device that trains to the next finished step, beyond what a step
  takes, by layout, and of a run whose driver dies and that a new process resumes, as every run did before.
- `throughput`: steps a minute with a death every 50 steps, as a share of the undisturbed run's, where the
  usual step of both takes as long; the runs take turns.
- `deaths`: two hundred deaths at seeded moments over every role that is started again. The run must end with
  the bits of one that was left alone, and leave nothing behind.

`--ray N` runs them on a Ray of N raylets on this machine instead of without Ray. `--json FILE` writes what
`write_docs.py` shows.
"""

import argparse
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.recovery.costs import LAYOUTS, RESUMED, costs
from benchmarks.recovery.deaths import deadly_job, differences, growth, strike
from benchmarks.recovery.jobs import Machine, machine
from benchmarks.recovery.throughput import SIDES, STEPS_A_DEATH, course, kept
from benchmarks.support.figures import Figures

PARTS = ("cost", "throughput", "deaths")


def measure_cost(place: Machine, figures: Figures, kills: int, seed: int) -> None:
    """(a) Each layout's run after the other."""
    for name in (*LAYOUTS, RESUMED):
        found = costs(place, name, kills, seed)
        for what, values in (
            ("to the next step", [cost.to_step for cost in found]),
            ("to where the run was", [cost.to_place for cost in found]),
        ):
            figures.add(f"{name}: {what}, median of {len(found)}", median(values), "s")
            bound = 15 if what == "to the next step" and name != RESUMED else None
            figures.add(f"{name}: {what}, worst", max(values), "s", bound)
        parts = defaultdict(list)
        for cost in found:
            for part, seconds in cost.parts.items():
                parts[part].append(seconds)
        for part, values in parts.items():
            figures.add(f"{name}: of the first, {part}, median", median(values), "s")


def measure_throughput(place: Machine, figures: Figures, turns: int, deaths: int) -> dict[str, Any]:
    """(b) All sides take turns; returns each run's steps over time."""
    courses = defaultdict(list)
    for turn in range(turns):
        for side in SIDES:
            courses[side].append(course(place, side, turn, deaths))
    alone = median(each[-1][0] / each[-1][1] for each in courses[SIDES[0]])
    figures.add("undisturbed: a step", alone, "s")
    for side in SIDES[1:]:
        shares = [
            kept(own) / kept(its) for own, its in zip(courses[side], courses[SIDES[0]], strict=True)
        ]
        name = f"throughput with a death every {STEPS_A_DEATH} steps, {side}"
        least = 95 if side == SIDES[1] else None
        figures.add(f"{name}, median of {turns}", 100 * median(shares), "%", least=least)
        figures.add(f"{name}, least", 100 * min(shares), "%")
    return {"courses": courses, "steps_a_death": STEPS_A_DEATH}


def measure_deaths(place: Machine, figures: Figures, deaths: int, seed: int) -> None:
    """(c) Beside the same run that is left alone."""
    shared = {path.name for path in Path("/dev/shm").iterdir()}
    job = deadly_job(place, deaths, seed)
    quiet, struck = place.run("quiet", job), place.run("struck", job)
    quiet.start()
    quiet.wait("end", lambda: quiet.code is not None)
    quiet.finish()
    struck.start()
    killed = Counter[str]()
    try:
        before, after = strike(struck, deaths, seed, killed)
        struck.wait("end", lambda: struck.code is not None)
        struck.finish()
    finally:  # also of a run that ended early
        figures.add("deaths in one run", killed.total(), "")
        for role, number in sorted(killed.items()):
            figures.add(f"deaths: {role}", number, "")
        told = [event["seconds"] for event in struck.of_kind("recovery")]
        figures.add("recoveries that they took", len(told), "")
        if told:
            figures.add("a recovery, median", median(told), "s")
            figures.add("a recovery, longest", max(told), "s")
    for what, number in differences(struck, quiet).items():
        figures.add(what, number, "", 0)
    for what, number in growth(before, after).items():
        figures.add(f"{what} more after all deaths than before", number, "", 0)
    figures.add("processes that outlive the run", struck.left(), "", 0)
    left = {path.name for path in Path("/dev/shm").iterdir()} - shared
    figures.add("files in /dev/shm that outlive it", len(left), "", 0)


def main() -> None:
    """Measure all parts, or those that are named, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few deaths")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    parser.add_argument("--ray", type=int, default=0, metavar="N", help="on a Ray of N raylets")
    parser.add_argument("--kills", type=int, default=7, help="of each layout")
    parser.add_argument("--turns", type=int, default=2, help="of the runs that are compared")
    parser.add_argument("--deaths", type=int, default=200, help="in one run")
    parser.add_argument("--seed", type=int, default=1, help="of the deaths")
    parser.add_argument("--folder", type=Path, help="where the runs stay, to be looked at")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    kills, turns, deaths, between = options.kills, options.turns, options.deaths, 3
    if options.quick:
        kills, turns, deaths, between = 2, 1, 8, 1
    figures, more = Figures(), dict[str, Any]()
    only: Sequence[str] = options.only
    # Emulated devices compute with one thread each; the warm-up, too, where others use the machine.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as scratch:
        folder: Path = (options.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with machine(folder, options.ray) as place:
                if "cost" in only:
                    measure_cost(place, figures, kills, options.seed)
                if "throughput" in only:
                    more = measure_throughput(place, figures, turns, between)
                if "deaths" in only:
                    measure_deaths(place, figures, deaths, options.seed)
        finally:
            if options.json is not None:
                facts = {"seed": options.seed, "raylets": options.ray}
                packages = ["rljob", "torch", "ray"]
                figures.write(options.json, packages=packages, facts=facts, **more)
    if missed := figures.missed():
        sys.exit(f"missed: {', '.join(figure.name for figure in missed)}")


if __name__ == "__main__":
    main()
