"""Runs beside each other whose results outlive a benchmark that is cut short. Called by benchmarks in which
nothing is timed."""

import argparse
import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import yaml

from benchmarks.support.results import describe_machine

Run = dict[str, Any]


def runs_beside(
    wanted: Sequence[Mapping[str, Any]],
    learn: Callable[[Mapping[str, Any], Path], Run],
    *,
    file: Path | None,
    at_once: int,
) -> dict[str, Any]:
    """The document of all runs, in the order of `wanted`, behind others that the file has.

    wanted: settings of each run, by which it is known: those that the file has are not made again. learn:
    makes one in a folder that all share, and returns what the run adds to its settings. The file is written
    after every run. Exits with the settings of runs that failed, once the others have ended.
    """
    runs: list[Run] = json.loads(file.read_text())["runs"] if file and file.exists() else []
    missing = [settings for settings in wanted if not any(_is(run, settings) for run in runs)]
    failed = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as pool:
        waiting = {pool.submit(learn, settings, Path(folder)): settings for settings in missing}
        for done in as_completed(waiting):
            said = ", ".join(f"{name} {value}" for name, value in waiting[done].items())
            if error := done.exception():
                failed.append(f"{said}: {error}")
                continue
            runs.append({**waiting[done], **done.result()})
            print(f"{said}: done, {len(runs)} runs are there", flush=True)
            if file is not None:
                file.write_text(json.dumps(_document(runs, wanted)) + "\n")
    if failed:
        raise SystemExit("These failed; the same command makes them again:\n" + "\n".join(failed))
    return _document(runs, wanted)


def runs_of_forms(
    description: str,
    example: Path,
    forms: Iterable[str],
    learn: Callable[[Mapping[str, Any], Path], Run],
    parts: Callable[[Mapping[str, Any]], list[str]],
) -> None:
    """The command line of a benchmark that runs a job in several forms, seed after seed, for as many steps as
    its example has, and prints the parts of the document. learn: as `runs_beside` has it."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, few steps")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--at-once", type=int, default=1, help="runs beside each other")
    options = parser.parse_args()
    steps = 4 if options.quick else yaml.safe_load(example.read_text())["spec"]["steps"]
    seeds = options.seeds[:1] if options.quick else options.seeds
    wanted = [
        {"form": form, "seed": seed, "steps": steps}
        for seed, form in itertools.product(seeds, forms)
    ]
    document = runs_beside(wanted, learn, file=options.json, at_once=options.at_once)
    print("\n\n".join(parts(document)))


def _document(runs: Sequence[Run], wanted: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def place(run: Run) -> list[int]:
        return [number for number, settings in enumerate(wanted) if _is(run, settings)]

    machine = describe_machine(["rljob", "torch"])
    return {"runs": sorted(runs, key=place), "machine": machine}


def _is(run: Run, settings: Mapping[str, Any]) -> bool:
    return all(run.get(name) == value for name, value in settings.items())
