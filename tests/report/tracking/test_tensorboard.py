"""What TensorBoard's own reader finds in a run's folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rljob_runtime.record.event_types import EvaluationEvent, SetFigures


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) by name, as TensorBoard shows them."""
    reader = EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    names = reader.Tags()["scalars"]
    return {name: [(e.step, e.value) for e in reader.Scalars(name)] for name in names}


def test_steps_and_evaluations_are_there_under_the_events_names(tracked: Callable) -> None:
    run = tracked(tensorboard={})
    run.begin()
    run.step(1, reward__mean=0.25, loss=None)
    run.step(2, reward__mean=0.5, loss=1.5)
    suites = {"hard": SetFigures(accuracy=0.125, n=4)}
    run.log.write(EvaluationEvent(step=2, accuracy=0.75, n=8, suites=suites))
    run.end()

    found = scalars(run.folder)

    assert run.warned == []
    assert found == {
        "reward/mean": [(1, 0.25), (2, 0.5)],
        "loss": [(2, 1.5)],
        "seconds": [(1, 2.0), (2, 2.0)],
        "phases/generate": [(1, 1.5), (2, 1.5)],
        "evaluation/accuracy": [(2, 0.75)],
        "evaluation/hard/accuracy": [(2, 0.125)],
    }


def test_steps_that_a_resumed_run_does_again_replace_those_before(tracked: Callable) -> None:
    first = tracked(tensorboard={})
    first.begin()
    for step in (1, 2, 3):
        first.step(step, loss=float(step))
    first.end("interrupted")
    again = tracked(tensorboard={})
    again.begin(resumed_from=1)
    again.step(2, loss=20.0)
    again.end()

    assert scalars(again.folder)["loss"] == [(1, 1.0), (2, 20.0)]


def test_steps_that_a_run_was_rolled_back_over_are_replaced(tracked: Callable) -> None:
    run = tracked(tensorboard={})
    run.begin()
    for step, loss in ((1, 1.0), (2, 2.0), (3, 3.0), (2, 20.0), (3, 30.0)):
        run.step(step, loss=loss)
    run.end()

    assert scalars(run.folder)["loss"] == [(1, 1.0), (2, 20.0), (3, 30.0)]


def test_a_run_whose_log_begins_with_a_torn_line_is_tracked_as_before(tracked: Callable) -> None:
    first = tracked(tensorboard={})
    first.log.path.write_text('{"time": 1, "kind": "run_star\n')
    first.begin()
    first.step(1, loss=2.0)
    first.end()

    assert first.warned == []
    assert scalars(first.folder)["loss"] == [(1, 2.0)]
