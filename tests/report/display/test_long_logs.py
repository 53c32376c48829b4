"""A log is read in bounded memory: thinned as it is read, and briefly up to its last bytes. What comes out is
what the slow way says, which reads all events first; for runs that went back, torn lines and every prefix.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from run_events import make_events

from rljob_runtime.record.event_types import StepEvent
from rljob_runtime.record.events import BriefStep, read_events
from rljob_runtime.report.analysis import run as analysis
from rljob_runtime.report.analysis.run import analyze_run
from rljob_runtime.report.display import history as history_module
from rljob_runtime.report.display.history import MOST_STEPS, RunHistory
from rljob_runtime.report.display.run_diff import ComparedRun, diff_json, diff_runs
from rljob_runtime.report.watch import follow
from rljob_runtime.report.watch.runs import LocalRun

Event = dict[str, Any]
BY_STEP = ("evaluations", "reshards", "in_flight", "checkpoints", "done")
LISTS = ("warnings", "reward_errors", "alarms", "best", "resizes", "profiles", "resumed_from")


def random_log(seed: int, *, lives: int = 5) -> list[bytes]:
    """Lines of a run that was resumed, rolled back, warned and torn, at random."""
    rng = random.Random(seed)
    made = make_events(steps=30, every=3, finished=None)
    by_step: dict[int, list[Event]] = {}
    for event in made[1:]:
        if event["kind"] != "phase" or event["device"] == 0:
            by_step.setdefault(event.get("step") or 0, []).append(event)
    lines, now, done = list[bytes](), made[0]["time"], 0

    def write(event: Event) -> None:
        nonlocal now
        now += 1.0
        line = json.dumps(event | {"time": now}, separators=(",", ":")).encode()
        torn = rng.random() < 0.03 and event["kind"] not in ("run_started", "alarm")
        lines.append((line[: rng.randrange(len(line))] if torn else line) + b"\n")

    write(made[0])
    for _ in range(lives):
        for step in range(done + 1, min(30, done + rng.randrange(2, 12)) + 1):
            done = step
            for event in by_step[step]:
                write(event)
            if rng.random() < 0.2:
                kind = rng.choice(("warning", "reward_error", "best", "resize"))
                told = {"message": "w", "reward": "r", "metric": "m", "value": 1.0, "count": 2}
                resize = {"from": 1, "to": 2, "waited_seconds": 1.0, "stopped_seconds": 0.5}
                write({"kind": kind, "step": step} | told | resize)
        back = rng.randrange(done + 1)
        if rng.random() < 0.5:
            if rng.random() < 0.5:
                write({"kind": "run_finished", "status": "failed", "step": done, "next": []})
            write(made[0] | ({"resumed_from": back} if back else {}))
        else:
            alarm = {"alarm": "collapse", "state": "raised", "policy": "rollback", "message": "m"}
            write({"kind": "alarm", "step": done, "rolled_back_to": back} | alarm)
        done = back
    return lines


def prefixes(lines: list[bytes], seed: int) -> Iterator[bytes]:
    """After each line, and somewhere within each."""
    rng, written = random.Random(seed), b""
    for line in lines:
        yield written + line[: rng.randrange(len(line))]
        written += line
        yield written


def brief(history: RunHistory) -> Any:
    """What of a history stays without phases, docks and samples."""
    steps = {s: (e.time, e.seconds, e.metrics, e.staleness) for s, e in history.steps.items()}
    evaluations = {s: (e.time, e.accuracy, e.n) for s, e in history.evaluations.items()}
    told = {n: getattr(history, n) for n in (*BY_STEP, *LISTS) if n != "evaluations"}
    ends = history.started, history.finished, history.progress, history.first_time
    return steps, evaluations, told, ends, history.last_time, history.mean_speed()


@pytest.mark.parametrize("seed", range(3))
def test_a_log_that_is_read_in_one_go_is_what_its_cut_events_say(tmp_path: Path, seed: int) -> None:
    log = tmp_path / "events.jsonl"
    for written in prefixes(random_log(seed), seed):
        log.write_bytes(written)

        assert RunHistory.read(log) == RunHistory.of(read_events(log))


@pytest.mark.parametrize("seed", range(3))
def test_what_is_read_briefly_is_the_same_but_for_its_details(tmp_path: Path, seed: int) -> None:
    log, rng = tmp_path / "events.jsonl", random.Random(seed)
    for written in prefixes(random_log(seed), seed):
        log.write_bytes(written)
        tail_bytes = rng.randrange(8000, 40_000)  # the last line is in it
        whole = RunHistory.of(read_events(log))

        history = RunHistory.read(log, tail_bytes=tail_bytes)

        assert brief(history) == brief(whole)
        for step, event in history.steps.items():
            assert isinstance(event, BriefStep) or event == whole.steps[step]
        for step, phases in history.phases.items():
            assert phases == whole.phases[step][-len(phases) :]
        assert history == whole or len(written) > tail_bytes


@pytest.mark.parametrize("piece_bytes", [100, 4096])
@pytest.mark.parametrize("tail_bytes", [9000, 10**9])
def test_a_run_that_is_followed_is_read_likewise(
    monkeypatch, tmp_path: Path, piece_bytes: int, tail_bytes: int
) -> None:
    monkeypatch.setattr(follow, "FILE_PIECE_BYTES", piece_bytes)
    lines = random_log(3)
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines[:-40]))
    run, history, more = LocalRun(tmp_path, tail_bytes=tail_bytes), RunHistory(), True
    with (tmp_path / "events.jsonl").open("ab") as log:
        while more:
            news = run.news()
            history.take(news.events)
            more = news.more
        log.writelines(lines[-40:])
    history.take(event for _ in range(400) for event in run.news().events)

    assert brief(history) == brief(RunHistory.of(read_events(tmp_path / "events.jsonl")))


def test_a_long_runs_steps_are_kept_evenly_up_to_its_last_ones() -> None:
    step = StepEvent(time=0.0, step=1, seconds=1.0, metrics={})
    history = RunHistory()

    history.take(replace(step, step=n, time=float(n)) for n in range(1, 30_001))

    kept = sorted(history.steps)
    early = [later - before for before, later in pairwise(kept)]
    assert len(kept) <= MOST_STEPS
    assert kept[-1000:] == list(range(29_001, 30_001))
    assert max(early) <= 2 * 30_000 / (MOST_STEPS // 4)


def test_steps_that_are_analyzed_have_all_details_however_long_they_are(
    monkeypatch, tmp_path: Path
) -> None:
    lines = [json.dumps(event) for event in make_events(steps=80)]
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    right = analyze_run(tmp_path)

    monkeypatch.setattr(analysis, "TAIL_BYTES", 5000)

    assert analyze_run(tmp_path) == right


@pytest.mark.parametrize("told", [{}, {"phases": {"generate": 0.5, "update": 0.25, "sync": 0.0}}])
def test_all_steps_of_long_runs_are_compared(monkeypatch, tmp_path: Path, told: Event) -> None:
    for name, changed in (("a", 0), ("b", 17)):
        (tmp_path / name).mkdir()
        events = make_events(steps=70)
        for event in events:
            if event["kind"] == "step":
                event |= told
                event["metrics"]["entropy"] += event["step"] == changed
        lines = "\n".join(map(json.dumps, events))
        (tmp_path / name / "events.jsonl").write_text(lines)

    def difference() -> Event:
        return diff_json(diff_runs(ComparedRun.of(tmp_path / "a"), ComparedRun.of(tmp_path / "b")))

    right = difference()
    monkeypatch.setattr(history_module, "MOST_STEPS", 40)

    assert difference() == right
    assert right["metrics"]["entropy"]["firstDifferentStep"] == 17
    assert {"step", "generate", "update"} <= right["phaseSeconds"].keys()
