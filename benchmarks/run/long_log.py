"""What it takes to look at a run of many steps: time and memory of each reader of its events.

Makes a log of `--steps` steps, as `tests/support/driver/run_events.py` has them, with a reshard a step. Each
reader is a process of its own: `rljob watch`; what the page of `rljob watch --web` shows first, and until it
shows all; the display of a run that is resumed; `rljob report`, `rljob analyze`, `rljob diff` with the same
run again, `rljob doctor`. `--json FILE` writes the table.
"""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.support.figures import Figures
from rljob_runtime.record.events import plain

sys.path.append(str(ROOT / "tests" / "support" / "driver"))

from run_events import event_of, make_events

BLOCK = 200
"""Steps that are made; further ones are these again, with their own numbers and times."""
SECONDS, MEGABYTES = 5.0, 300.0
"""What a first screen may take, and each reader."""
READ_WHOLE = ("watch --web, all of it", "report", "diff")
"""Which take longer: they need each event, or all steps of two runs."""


def main() -> None:
    """Write the log, let each reader read it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--readers", nargs="+", choices=READERS, default=[*READERS])
    parser.add_argument(
        "--folder", type=Path, help="keep the log here, or read the one that is here"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    steps, repetitions = (400, 1) if options.quick else (options.steps, options.repetitions)
    with tempfile.TemporaryDirectory() as place:
        folder: Path = options.folder or Path(place)
        if not (log := folder / "events.jsonl").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_log(log, steps)
        size = log.stat().st_size
        figures = Figures()
        figures.add("log: steps", steps, "")
        figures.add("log: size", size / 1e6, "MB")
        for name in options.readers:
            measure(name, folder, repetitions, figures)
    if options.json:
        facts = {"repetitions": repetitions}
        figures.write(options.json, packages=["rljob", "msgspec", "pydantic"], facts=facts)


def write_log(path: Path, steps: int) -> None:
    """A run of so many steps that has ended."""
    block = [plain(event_of(event)) for event in make_events(steps=BLOCK)]
    first, *events, last = [*as_of_runs(block)]
    seconds = last["time"] - first["time"]
    with path.open("w") as log:
        log.write(_line(first | {"steps": steps}))
        for number in range(-(-steps // BLOCK)):
            shift = partial(shifted, steps=BLOCK * number, seconds=seconds * number)
            later = (e for e in events if not number or e.get("step"))
            log.writelines(map(_line, map(shift, later)))
        log.write(_line(shift(last)))


def as_of_runs(events: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The events; each step tells its phases, as those of runs do, and a reshard comes after it."""
    for event in events:
        if event["kind"] != "step":
            yield event
        else:
            phases = {"generate": 0.22, "reference": 0.03, "reward": 0.05, "update": 0.12}
            yield event | {"phases": phases}
            told = {"time": event["time"], "kind": "reshard", "step": event["step"]}
            yield told | {"seconds": 0.02, "peak_bytes": 61_000_000, "bound_bytes": 64_000_000}


def shifted(event: dict[str, Any], *, steps: int, seconds: float) -> dict[str, Any]:
    """The event of a later step."""
    times = [name for name in ("time", "start", "end") if name in event]
    moved: dict[str, Any] = {name: event[name] + seconds for name in times}
    if event.get("step") is not None:
        moved["step"] = event["step"] + steps
    if event.get("rows"):
        moved["rows"] = event["rows"] | {"start": event["rows"]["start"] + seconds}
    return event | moved


def measure(name: str, folder: Path, repetitions: int, figures: Figures) -> None:
    """Median seconds and memory of one reader, in processes of its own."""
    seconds, megabytes = list[float](), list[float]()
    for _ in range(repetitions):
        context = multiprocessing.get_context("spawn")
        answer, end = context.Pipe(duplex=False)
        child = context.Process(target=_read, args=(name, folder, end))
        child.start()
        end.close()
        took = answer.recv()
        child.join()
        seconds.append(took[0])
        megabytes.append(took[1])
    limit = None if name in READ_WHOLE else SECONDS
    figures.add(f"{name}: time", statistics.median(seconds), "s", limit)
    figures.add(f"{name}: resident memory", statistics.median(megabytes), "MB", MEGABYTES)


def _read(name: str, folder: Path, answer: Any) -> None:
    out = os.open(os.devnull, os.O_WRONLY)
    os.dup2(out, 1)
    read = READERS[name]()
    began = time.monotonic()
    read(folder)
    took = time.monotonic() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer.send((took, peak / 1024))


def _line(event: dict[str, Any]) -> str:
    return json.dumps(event, ensure_ascii=False, separators=(",", ":")) + "\n"


Reader = Callable[[Path], object]


def _watch() -> Reader:
    from rljob_runtime.report.display.display import display_after
    from rljob_runtime.report.display.history import TAIL_BYTES
    from rljob_runtime.report.watch.on_terminal import TerminalWatch
    from rljob_runtime.report.watch.runs import LocalRun

    def read(folder: Path) -> object:
        run = LocalRun(folder, tail_bytes=TAIL_BYTES)
        shown = partial(display_after, report=run.report)
        return TerminalWatch(run, shown, patience_seconds=0.0, notify=print).run_until_end()

    return read


def _page() -> Reader:
    from rljob_runtime.report.watch.live_document import LiveRun
    from rljob_runtime.report.watch.runs import LocalRun

    return lambda folder: LiveRun(LocalRun(folder)).answer("", 0)


def _whole_page() -> Reader:
    from rljob_runtime.report.watch.live_document import LiveRun
    from rljob_runtime.report.watch.runs import LocalRun

    def read(folder: Path) -> object:
        run = LiveRun(LocalRun(folder))
        known: dict[str, Any] = {"run": "", "version": 0, "trouble": "unread"}
        while known["trouble"]:
            known = json.loads(run.answer(known["run"], known["version"]))
        return run

    return read


def _resume() -> Reader:
    from rljob_runtime.report.display.display import make_display

    return make_display


def _report() -> Reader:
    from rljob_runtime.report.display.report import write_report

    return write_report


def _analyze() -> Reader:
    from rljob_runtime.report.analysis.run import analyze_run

    return analyze_run


def _diff() -> Reader:
    from rljob_runtime.report.display.run_diff import ComparedRun, diff_runs

    return lambda folder: diff_runs(ComparedRun.of(folder), ComparedRun.of(folder))


def _doctor() -> Reader:
    from rljob_runtime.cli.doctor.run_folder import examine_run

    return examine_run


def _nothing() -> Reader:
    for reader in (_watch, _page, _report):
        reader()
    return lambda folder: None


READERS: dict[str, Callable[[], Reader]] = {
    "imports alone": _nothing,
    "watch": _watch,
    "watch --web": _page,
    "watch --web, all of it": _whole_page,
    "resume": _resume,
    "analyze": _analyze,
    "report": _report,
    "diff": _diff,
    "doctor": _doctor,
}


if __name__ == "__main__":
    main()
