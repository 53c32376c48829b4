"""A driver that dies at any message or write, while its workers live: the next takes over from what it kept.

The drivers, their flow, what they keep and their files are the real ones; the workers are a world of few
lines, which lives on. Real processes die in test_driver_taken_over_on_ray.
"""

import contextlib
import json
import pickle
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from driver_world import (
    Boundaries,
    CountedLog,
    Killed,
    Sample,
    ToldDriver,
    World,
    driver_of,
    job_with,
)

from rljob_api.spec.rljob import RLJob
from rljob_runtime.errors import WorkerError
from rljob_runtime.prompts.rounds import CandidateRound
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.folders import Folder
from rljob_runtime.run.loop import run_steps
from rljob_runtime.run.succession import Succession
from rljob_runtime.samples.batches import BatchName

OF_A_DRIVER = {"recovery", "warning", "progress", "phase"}
EVALUATION = {"prompts": 4, "every": 2}
FLOWS: list[tuple[dict[str, Any], int]] = [
    ({"flow": {"mode": "sync"}}, 1),
    ({"flow": {"mode": "sync"}, "evaluation": EVALUATION}, 2),
    ({"flow": {"mode": "streaming"}}, 3),
    ({"flow": {"mode": "async", "maxStaleness": 2}}, 3),
]
"""Each with how many boundaries lie between two deaths."""


@dataclass
class LastingWorld(World):
    """Workers that remember what they reported, and outlive drivers."""

    reports: dict[tuple[str, BatchName], Any] = field(default_factory=dict)
    done: int = 0

    def do_generate(self, batch: BatchName, share: tuple[int, int]) -> None:
        super().do_generate(batch, share)
        self.reports["generate", batch] = None

    def do_score(self, batch: BatchName) -> Any:
        self.reports["reward", batch] = report = super().do_score(batch)
        return report

    def do_select(self, now: CandidateRound) -> Any:
        self.reports["reward", now.rows] = report = super().do_select(now)
        return report

    def do_update(self, batch: BatchName) -> None:
        super().do_update(batch)
        self.reports["update", batch], self.done = None, batch.step

    def do_load(self, checkpoint: Folder, step: int) -> None:
        super().do_load(checkpoint, step)
        self.done = step

    def do_after(self) -> int:
        return self.done

    def do_past_report(self, stage: str, batch: BatchName) -> Any:
        if (stage, batch) not in self.reports:
            raise WorkerError(f"{batch} has no report of {stage}")
        return self.reports[stage, batch]


@dataclass
class KeptHere:
    """In place of the process above a driver."""

    boundaries: Boundaries
    values: dict[str, bytes] = field(default_factory=dict)
    deaths: int = 0

    def ask(self, what: str) -> dict[str, Any]:
        assert what == "who_died"
        return {"seen": "killed", "since": time.time()} if self.deaths else {}

    def kept(self) -> dict[str, bytes]:
        return dict(self.values)

    def keep(self, told: int | None = None, actors: object = None, **values: Any) -> None:
        written = {name: pickle.dumps(value) for name, value in values.items()}
        self.boundaries.around(self.values.update)(written)


def live(job: RLJob, folder: Path, world: LastingWorld, link: KeptHere) -> None:
    """One driver's life."""
    succession = Succession(link)  # type: ignore[arg-type]
    store = CheckpointStore(folder=folder / "checkpoints", keep=9)
    if not succession.continues_workers:
        store.recover()
        succession.begin(folder, resumed_from=None)
    log = CountedLog(folder / "events.jsonl", world.boundaries)
    try:
        succession.take_events(log)
        driver = driver_of(ToldDriver, job, world=world, store=store, log=log)
        driver.actors.meet = lambda: None  # type: ignore[method-assign]
        alive = SimpleNamespace(
            dead=lambda workers: [False] * len(workers), has_reservation=lambda worker: True
        )
        driver.actors.pool = SimpleNamespace(workers=alive, renew=lambda nodes: None)  # type: ignore[assignment]
        run_steps(driver, succession.follow(driver))
    finally:
        log.close()


def lives(
    job: RLJob, folder: Path, boundaries: Boundaries, fatal: list[int]
) -> tuple[list[Sample], Counter[tuple[Any, ...]]]:
    """What the weights are of, and what was told, after drivers that die there and a last one."""
    folder.mkdir(parents=True)
    link, world = KeptHere(boundaries), LastingWorld(boundaries)
    world.accuracies = dict.fromkeys(range(9), 0.5)
    for place in [*fatal, None]:
        boundaries.crossed, boundaries.fatal = 0, place
        with contextlib.suppress(Killed):
            live(job, folder, world, link)
        link.deaths += 1
        if "position" not in link.values:  # its workers are ended
            world = LastingWorld(boundaries, accuracies=world.accuracies)
    lines = (folder / "events.jsonl").read_text().splitlines()
    told = [event for event in map(json.loads, lines) if event["kind"] not in OF_A_DRIVER]
    return world.weights, Counter((event["kind"], event["step"]) for event in told)


def die_everywhere(job: RLJob, boundaries: Boundaries, tmp_path: Path, *, every: int) -> None:
    """Assert that weights and what was told are the same wherever drivers die, once or twice."""
    whole = lives(job, tmp_path / "undisturbed", boundaries, [])
    deaths = boundaries.crossed
    assert deaths > 50
    assert len(whole[0]) == len({*whole[0]}) > job.spec.steps

    for place in range(0, deaths, every):
        fatal = [place, place * 7 % 40] if place % 2 else [place]
        assert lives(job, tmp_path / str(place), boundaries, fatal) == whole, fatal


@pytest.mark.parametrize(
    ("changes", "every"), FLOWS, ids=["sync", "evaluated", "streaming", "async"]
)
def test_each_sample_is_trained_on_and_all_is_told_once_wherever_the_driver_dies(
    changes: dict[str, Any], every: int, boundaries: Boundaries, tmp_path: Path
) -> None:
    job = job_with(**changes, steps=3)

    die_everywhere(job, boundaries, tmp_path, every=every)


def test_groups_left_over_by_dynamic_sampling_are_trained_on_once_wherever_the_driver_dies(
    boundaries: Boundaries, tmp_path: Path
) -> None:
    params = {"dynamicSampling": {"whenShort": "go-on"}}
    job = job_with({"mode": "sync"}, algorithm={"name": "dapo", "params": params}, steps=3)

    die_everywhere(job, boundaries, tmp_path, every=5)
