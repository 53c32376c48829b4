"""A driver whose held-out accuracy is written down: which checkpoints stay, and when it ends."""

from pathlib import Path
from typing import Any

import pytest
from driver_world import FLOWS, Boundaries, ToldDriver, World, driver_of, job_with
from run_events import told_in

from rljob_runtime.errors import ConfigError
from rljob_runtime.models.export import find_best
from rljob_runtime.record.checkpoint import CheckpointStore
from rljob_runtime.record.events import EventLog
from rljob_runtime.run.loop import run_steps

RISES_THEN_FALLS = {0: 0.1, 1: 0.2, 2: 0.6, 3: 0.5, 4: 0.4, 5: 0.3, 6: 0.2}
flows = pytest.mark.parametrize("flow", FLOWS, ids=[flow["mode"] for flow in FLOWS])


def make(
    folder: Path, boundaries: Boundaries, flow: dict[str, Any], **changes: Any
) -> tuple[ToldDriver, CheckpointStore]:
    spec = {"steps": 6, "checkpoint": {"keep": 1, "keepBest": True}, **changes}
    evaluation = {"prompts": 4, "every": 1, **changes.get("evaluation", {})}
    job = job_with(flow, **{**spec, "evaluation": evaluation})
    store = CheckpointStore(folder=folder / "checkpoints", keep=job.spec.checkpoint.keep)
    world = World(boundaries, accuracies=RISES_THEN_FALLS)
    log = EventLog(folder / "events.jsonl")
    return driver_of(ToldDriver, job, world=world, store=store, log=log), store


@flows
def test_the_best_checkpoint_stays_beside_the_last(
    flow: dict[str, Any], boundaries: Boundaries, tmp_path: Path
) -> None:
    driver, store = make(tmp_path, boundaries, flow)

    run_steps(driver)

    assert sorted(path.name for path in store.folder.glob("step-*")) == [
        "step-000002",
        "step-000006",
    ]
    told = [e for e in told_in(driver.log.path) if e.kind == "best"]
    assert [(e.step, e.value) for e in told] == [(1, 0.2), (2, 0.6)]
    model = store.path(2) / "model"
    model.unlink()  # this world's models are files
    model.mkdir()
    (model / "config.json").write_text("{}")
    assert find_best(tmp_path) == model


@flows
def test_training_ends_when_evaluations_stop_getting_better(
    flow: dict[str, Any], boundaries: Boundaries, tmp_path: Path
) -> None:
    driver, store = make(
        tmp_path, boundaries, flow, evaluation={"earlyStop": {"patience": 2, "minDelta": 0.05}}
    )

    run_steps(driver)

    assert driver.step == 4  # better after 2; after 3 and 4 not
    assert store.last_step() == 4
    words = driver.early_stopping.last_words(driver.step, 6)
    assert "stopped early after step 4: 2 evaluations without a better accuracy" in words
    assert "the best was 0.6 after step 2" in words
    again, _ = make(
        tmp_path, boundaries, flow, evaluation={"earlyStop": {"patience": 2, "minDelta": 0.05}}
    )
    again.resume(store.path(4))
    run_steps(again)
    assert again.step == 4


def test_more_patience_lets_a_resumed_run_go_on(boundaries: Boundaries, tmp_path: Path) -> None:
    first, store = make(tmp_path, boundaries, FLOWS[0], evaluation={"earlyStop": {"patience": 1}})
    run_steps(first)
    assert first.step == 3
    more, _ = make(tmp_path, boundaries, FLOWS[0], evaluation={"earlyStop": {"patience": 9}})

    more.resume(store.path(3))
    run_steps(more)

    assert more.step == 6
    assert more.early_stopping.best.step == 2
    assert store.path(2).exists()


def test_without_keep_best_only_the_last_checkpoints_stay(
    boundaries: Boundaries, tmp_path: Path
) -> None:
    driver, store = make(tmp_path, boundaries, FLOWS[0], checkpoint={"keep": 1})

    run_steps(driver)

    assert [path.name for path in store.folder.glob("step-*")] == ["step-000006"]
    with pytest.raises(
        ConfigError, match=r"best evaluation of .* was after step 2, and .* not there"
    ):
        find_best(tmp_path)


def test_a_folder_without_evaluations_has_no_best_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no best checkpoint; .* spec\.checkpoint\.keepBest"):
        find_best(tmp_path)
