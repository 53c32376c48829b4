"""A whole run with trackers: one has every metric, the other is not there, and the run ends well."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tracked_job import TRACKED
from whole_runs import RunsOfAll

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

pytestmark = [pytest.mark.run]


def test_tensorboard_shows_what_the_events_tell_and_a_server_that_is_not_there_is_told(
    job_file: Callable[..., Path], run_of_all: RunsOfAll
) -> None:
    finished = run_of_all(job_file(**TRACKED))

    assert finished.code == 0, finished.output
    reader = EventAccumulator(str(finished.folder / "tensorboard"))
    reader.Reload()
    for event in finished.of_kind("step"):
        for name, value in event["metrics"].items():
            found = {e.step: e.value for e in reader.Scalars(name)}
            assert found[event["step"]] == pytest.approx(value, rel=1e-6), name
    accuracy = {e.step: e.value for e in reader.Scalars("evaluation/accuracy")}
    told = {event["step"]: event["accuracy"] for event in finished.of_kind("evaluation")}
    assert accuracy == pytest.approx(told)
    warnings = [event["message"] for event in finished.of_kind("warning")]
    assert len(warnings) <= 2  # one alone where the server's answer comes after the last step
    assert "it lacks" in warnings[-1]
    assert warnings[0].startswith("tracking by mlflow: URLError")
