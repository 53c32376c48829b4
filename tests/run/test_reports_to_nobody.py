"""Ray tells its makers what it is used for unless it is told not to; a run tells it not to."""

import os

import pytest
from ray._common.usage.usage_lib import usage_stats_enabled
from whole_runs import SMALL_JOB

from rljob_api.spec.rljob import RLJob
from rljob_api.topology.resolved import resolve
from rljob_runtime.processes import local_ray, session


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether Ray would report, at the moment when it is started; it is not."""
    moments: list[bool] = []

    def start(**_: object) -> None:
        moments.append(usage_stats_enabled())
        raise InterruptedError

    monkeypatch.setattr(local_ray, "start_ray", start)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    return moments


def open_session() -> None:
    with (
        pytest.raises(InterruptedError),
        session.ray_session(resolve(RLJob.model_validate(SMALL_JOB)), None),
    ):
        pass


def test_a_run_lets_ray_report_nothing(told: list[bool]) -> None:
    os.environ.pop("RAY_USAGE_STATS_ENABLED", None)

    open_session()

    assert told == [False]


def test_who_wants_to_report_may(told: list[bool]) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "1"

    open_session()

    assert told == [True]
