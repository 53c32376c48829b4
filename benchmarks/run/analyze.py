"""Whether what `rljob analyze` advises makes steps faster, and as much as it predicts.

Jobs that were built to be slow run as they are, then with the first change that is advised for their
bottleneck or, where it has none, for any part. `--json FILE` writes the table.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.support.results import Result, report, summarize
from benchmarks.support.runs import events_of
from rljob_runtime.report.analysis.advice import merged
from rljob_runtime.report.analysis.remedies import Advice
from rljob_runtime.report.analysis.run import Analysis, analyze_run

sys.path.append(str(ROOT / "tests" / "support" / "driver"))

from slow_jobs import SLOW_JOBS, slow_answers, slow_service, write_job

SERVICES = ("http", "judge")
TARGET = 1.05
"""How many times faster a step is to become."""


def main() -> None:
    """Let each job run both ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="the slow service alone, few steps")
    names = ["service", *SLOW_JOBS]
    parser.add_argument("--jobs", nargs="+", choices=names, default=names)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    repetitions, steps = (1, 4) if options.quick else (options.repetitions, 8)
    with slow_service() as url:
        jobs = {"service": slow_answers(url)} | {name: make() for name, make in SLOW_JOBS.items()}
        results = [
            measure(name, jobs[name], repetitions=repetitions, steps=steps)
            for name in (["service"] if options.quick else options.jobs)
        ]
    report(results, packages=["rljob", "torch", "ray"], file=options.json)


def measure(name: str, job: dict[str, Any], *, repetitions: int, steps: int) -> Result:
    """Seconds of a step with the advised change, beside those without it and those that were predicted."""
    before, after, predicted = list[float](), list[float](), list[float]()
    advice: Advice | None = None
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as place:
            found = _run(job, Path(place), steps, None)
            advice = advice or first_advice(found)
            before.append(found.seconds)
            told = [a.seconds for a in found.advice if a.change == advice.change and a.seconds]
            predicted += told
            after.append(_run(job, Path(place), steps, advice).seconds)
        said = f"{predicted[-1]:.2f}" if predicted else "no"
        took = f"{before[-1]:.2f} s, {said} s predicted, {after[-1]:.2f} s"
        print(f"{name}: {took} with {_short(advice)}", flush=True)
    assert advice is not None, "one repetition at least"
    return summarize(
        f"a step with a slow {name}, changed as advised: {_short(advice)}",
        ours=after,
        peers={"as it was": before, "as predicted": predicted or [statistics.median(after)]},
        unit="seconds",
        better="lower",
        targets={"as it was": TARGET},
    )


def first_advice(found: Analysis) -> Advice:
    """That has an estimate, for the bottleneck where there is one."""
    estimated = [advice for advice in found.advice if advice.seconds is not None]
    own = [advice for advice in estimated if advice.part == found.bottleneck.name]
    assert estimated, f"nothing is advised for {found.name}: {[p.name for p in found.parts]}"
    return (own or estimated)[0]


def _run(job: dict[str, Any], folder: Path, steps: int, advice: Advice | None) -> Analysis:
    job = merged(job, advice.change if advice else {})
    job["spec"]["steps"] = steps
    write_job(job, folder)
    run = "changed" if advice else "as-it-was"
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
