"""Whether what `rljob analyze` advises makes steps faster, and as much as it predicts.

Jobs that were built to be slow run as they are, then with the first change that is advised for their
bottleneck or, where it has none, for any part. `--json FILE` writes the table; `--record FOLDER` what tests
compare with: of each job the turn with the median gain, its job and its log, as far as analysis reads it.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.support.results import Result, report, summarize
from benchmarks.support.runs import events_of
from rljob_runtime.report.analysis.advice import merge_change
from rljob_runtime.report.analysis.remedies import Advice
from rljob_runtime.report.analysis.run import Analysis, analyze_run

sys.path.append(str(ROOT / "tests" / "support" / "driver"))

from slow_jobs import SLOW_JOBS, slow_answers, slow_service, write_job, write_paced_engine

AS_IT_WAS = "as-it-was"
SERVICES = ("http", "judge")
TARGET = 1.05
"""How many times faster a step is to become."""
RECORDED = ("run_started", "phase", "step", "dock", "reshard")
"""Events that analysis reads."""
NOT_READ = ("machine", "versions", "samples", "memory")
"""Of their fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A job's run as it was, in `folder`, what was found in it and advised; after: seconds of a step with
    that."""

    folder: Path
    found: Analysis
    advice: Advice
    after: float

    @property
    def gain(self) -> float:
        """How many times faster a step became."""
        return self.found.seconds / self.after

    @property
    def promise(self) -> float | None:
        """How many times faster it was to become, where that is estimated."""
        return self.found.seconds / self.advice.seconds if self.advice.seconds else None


def main() -> None:
    """Let each job run both ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the slow service alone, few steps")
    names = ["service", *SLOW_JOBS]
    parser.add_argument("--jobs", nargs="+", choices=names, default=names)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--record", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    repetitions, steps = (1, 4) if options.quick else (options.repetitions, 8)
    results = []
    with slow_service() as url, tempfile.TemporaryDirectory() as packages:
        write_paced_engine(Path(packages))
        before = os.environ.get("PYTHONPATH", "")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (packages, before)))
        jobs = {"service": slow_answers(url)} | {name: make() for name, make in SLOW_JOBS.items()}
        for name in ["service"] if options.quick else options.jobs:
            with tempfile.TemporaryDirectory() as place:
                turns = list(_turns(jobs[name], Path(place), repetitions, steps))
                if options.record:
                    record(turns, options.record / name)
            results.append(result_of(name, turns))
    report(results, packages=["rljob", "torch", "ray"], file=options.json)


def result_of(name: str, turns: Sequence[Turn]) -> Result:
    """Seconds of a step with the advised change, beside those without it and those that were predicted."""
    predicted = [turn.advice.seconds for turn in turns if turn.advice.seconds is not None]
    peers = {"as it was": [turn.found.seconds for turn in turns]}
    return summarize(
        f"a step with a slow {name}, changed as advised: {_short(turns[0].advice)}",
        ours=[turn.after for turn in turns],
        peers=peers | ({"as predicted": predicted} if predicted else {}),
        unit="seconds",
        better="lower",
        targets={"as it was": TARGET},
    )


def record(turns: Sequence[Turn], folder: Path) -> None:
    """Write the median turn: `rljob.yaml`, `events.jsonl` and, in `measured.json`, the first advice, how many
    times faster it promises a step to be (null where it does not) and how many it was."""
    alike = [turn for turn in turns if first_advice(turn.found) == turn.advice]
    turn = sorted(alike, key=lambda turn: turn.gain)[len(alike) // 2]
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(turn.folder / "rljob.yaml", folder)
    lines = (turn.folder / "events.jsonl").read_text().splitlines()
    events = [event for event in map(json.loads, lines) if event["kind"] in RECORDED]
    kept = [
        {name: value for name, value in event.items() if name not in NOT_READ} for event in events
    ]
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in kept))
    measured = {"advice": turn.advice.change, "promised": turn.promise, "measured": turn.gain}
    (folder / "measured.json").write_text(json.dumps(measured, indent=2) + "\n")
    assert analyze_run(folder) == turn.found, "a record tells what the run told"


def first_advice(found: Analysis) -> Advice:
    """For the bottleneck where there is any, with an estimate where one has it."""
    assert found.advice, f"nothing is advised for {found.name}: {[p.name for p in found.parts]}"
    worst = found.bottleneck.name
    return min(found.advice, key=lambda advice: (advice.part != worst, advice.seconds is None))


def _turns(job: dict[str, Any], place: Path, repetitions: int, steps: int) -> Iterator[Turn]:
    """All with what is advised in the first, as far as it is advised again."""
    first: Advice | None = None
    for number in range(repetitions):
        folder = place / str(number)
        found = _run(job, folder, steps, None)
        first = first or first_advice(found)
        again = (advice for advice in found.advice if advice.change == first.change)
        advice = next(again, replace(first, seconds=None))
        after = _run(job, folder, steps, advice).seconds
        said = "no" if advice.seconds is None else f"{advice.seconds:.2f}"
        took = f"{found.seconds:.2f} s, {said} s predicted, {after:.2f} s"
        print(f"{found.name}: {took} with {_short(advice)}", flush=True)
        yield Turn(folder=folder / AS_IT_WAS, found=found, advice=advice, after=after)


def _run(job: dict[str, Any], folder: Path, steps: int, advice: Advice | None) -> Analysis:
    job = merge_change(job, advice.change if advice else {})
    job["spec"]["steps"] = steps
    write_job(job, folder)
    run = "changed" if advice else AS_IT_WAS
    events_of(job, folder, run)
    return analyze_run(folder / run)


def _short(advice: Advice) -> str:
    """Its fields: `flow.mode async`."""
    return ", ".join(_fields(advice.change["spec"]))


def _fields(change: Mapping[str, Any], path: str = "") -> Iterator[str]:
    for key, value in change.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{path}{key}.")
        elif key == "rewards":
            yield from (
                f"{kind}.concurrency {r[kind]['concurrency']}"
                for r in value
                for kind in r
                if kind in SERVICES
            )
        else:
            yield f"{path}{key} {value}"


if __name__ == "__main__":
    main()
