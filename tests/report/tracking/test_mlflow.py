"""What a real MLflow server holds of a run."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from free_ports import free_port
from mlflow_server import MLflowServer, mlflow_server, program
from programs import needs

from rljob_runtime.record.event_types import EvaluationEvent

pytestmark = [needs("mlflow", program()), pytest.mark.xdist_group("mlflow")]


class Unstarted:
    """A server that starts when it is asked for, and stays until the module's end."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.started: MLflowServer | None = None
        self._folder, self._stack = folder, stack

    def start(self) -> MLflowServer:
        if self.started is None:
            self.started = self._stack.enter_context(mlflow_server(self._folder, self.port))
        return self.started


@pytest.fixture(scope="module")
def unstarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unstarted]:
    with ExitStack() as stack:
        yield Unstarted(tmp_path_factory.mktemp("mlflow"), stack)


@pytest.fixture
def server(unstarted: Unstarted) -> MLflowServer:
    return unstarted.start()


def test_a_server_that_comes_late_gets_everything(tracked: Callable, unstarted: Unstarted) -> None:
    assert unstarted.started is None  # the module's first test
    run = tracked(mlflow={"trackingUri": unstarted.url, "experiment": "late"}, timeoutSeconds=120)
    run.begin()
    run.step(1, loss=0.25)
    run.step(2, loss=0.5)

    server = unstarted.start()
    run.end()
    (found,) = server.runs("late")

    assert server.history(found, "loss") == [(1, 0.25), (2, 0.5)]
    assert len(run.warned) == 1


def test_metrics_parameters_and_status_are_on_the_server(
    server: MLflowServer, tracked: Callable
) -> None:
    run = tracked(mlflow={"trackingUri": server.url, "experiment": "sums"})
    run.begin(algorithm="grpo")
    run.step(1, reward__mean=0.25)
    run.step(2, reward__mean=0.5)
    run.log.write(EvaluationEvent(step=2, accuracy=0.75, n=8))
    run.end()

    (found,) = server.runs("sums")

    assert run.warned == []
    assert (found["info"]["run_name"], found["info"]["status"]) == ("small", "FINISHED")
    parameters = {p["key"]: p["value"] for p in found["data"]["params"]}
    assert parameters == {"name": "small", "steps": "9", "model": "tiny", "algorithm": "grpo"}
    assert server.history(found, "reward/mean") == [(1, 0.25), (2, 0.5)]
    assert server.history(found, "evaluation/accuracy") == [(2, 0.75)]
    assert server.history(found, "phases/generate") == [(1, 1.5), (2, 1.5)]


def test_a_resumed_run_goes_on_with_its_run(server: MLflowServer, tracked: Callable) -> None:
    section = {"trackingUri": server.url, "experiment": "resumed"}
    for status, step in (("interrupted", 1), ("succeeded", 2)):
        run = tracked(mlflow=section)
        run.begin(**({"resumed_from": 1} if step == 2 else {}))
        run.step(step, loss=0.5)
        run.end(status)

    (found,) = server.runs("resumed")

    assert found["info"]["status"] == "FINISHED"
    assert server.history(found, "loss") == [(1, 0.5), (2, 0.5)]
