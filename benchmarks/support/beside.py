"""Runs beside each other whose results outlive a benchmark that is cut short. Called by benchmarks in which
nothing is timed."""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

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


def _document(runs: Sequence[Run], wanted: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def place(run: Run) -> list[int]:
        return [number for number, settings in enumerate(wanted) if _is(run, settings)]

    machine = describe_machine(["rljob", "torch"])
    return {"runs": sorted(runs, key=place), "machine": machine}


def _is(run: Run, settings: Mapping[str, Any]) -> bool:
    return all(run.get(name) == value for name, value in settings.items())
