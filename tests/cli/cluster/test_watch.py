"""`rljob watch NAME`: the run's events come from the head's pod, through real shells on a real file."""

import json
import threading
from collections.abc import Callable, Iterator

import pytest
from growing_run import GrowingRun
from kube_manifests import FOLDER, JOB, PODS, UNSCHEDULED, ended, job, pod
from kube_server import CORE, JOBS, refusal
from run_events import make_events

from rljob_runtime.cli.cluster.api_calls import Calls
from rljob_runtime.cli.cluster.connect import connect
from rljob_runtime.cli.cluster.watched import PATIENCE_SECONDS, ClusterRun
from rljob_runtime.errors import ClusterError, NoAnswer
from rljob_runtime.record.event_types import StepEvent
from rljob_runtime.report.watch.live_document import LiveRun
from rljob_runtime.report.watch.runs import RunActivity

Now = Callable[[], float]


@pytest.fixture
def run(server, tmp_path) -> GrowingRun:
    """A job whose head has a folder that grows."""
    server.jobs, server.pods = [JOB], [*PODS]
    server.folders = {FOLDER: tmp_path / "in-the-head"}
    made = GrowingRun(tmp_path / "in-the-head", make_events(steps=4, every=None))
    made.folder.mkdir()
    return made


@pytest.fixture
def watch(run, server, kubeconfig) -> Iterator[Callable[..., ClusterRun]]:
    """watch(clock): the job, watched."""
    environment = {"KUBECONFIG": str(kubeconfig(server.url))}
    calls = Calls(connect(environment, context=None, namespace=None))
    yield lambda clock=lambda: 0.0: ClusterRun(calls, "words", clock=clock)


def steps(found: ClusterRun) -> list[int]:
    return [event.step for event in found.news().events if isinstance(event, StepEvent)]


def answered(found: ClusterRun) -> list[int]:
    """Steps of the first look that is answered: on a busy machine one may be too late."""
    looks = (steps(found) for _ in range(10))
    return next((new for new in looks if new), [])


def test_a_job_is_shown_until_its_end_and_its_exit_status_told(
    server, run, rljob, monkeypatch
) -> None:
    run.write_until("step", 2)
    monkeypatch.setattr(ClusterRun, "pause_seconds", 0.1)

    def go_on() -> None:
        run.write()
        server.jobs = [ended("Succeeded")]

    later = threading.Timer(2.0, go_on)
    later.start()
    result = rljob("watch", "words")
    later.join()

    assert result.exit_code == 0, result.output
    assert "done: 4 of 4 steps" in result.stdout
    assert result.stdout.endswith("words in namespace research: the run ended with exit status 0\n")


def test_each_look_asks_for_what_is_new_alone(run, watch, server) -> None:
    found = watch()
    run.write_until("step", 2)
    first = answered(found)
    size = run.file.stat().st_size
    run.write_until("step", 3)

    assert (first, answered(found)) == ([1, 2], [3])
    assert {command[-1] for command in server.commands} == {"0", str(size)}


def test_a_head_that_was_made_anew_is_read_from_its_beginning(run, watch, server) -> None:
    found = watch()
    run.write_until("step", 2)
    found.news()
    server.pods = [pod("head", cluster="words-2")]
    server.jobs = [job(rayCluster={"name": "words-2"})]

    news = found.news()

    assert news.restarted
    assert [event.step for event in news.events if event.kind == "step"] == [1, 2]


@pytest.mark.parametrize(
    ("pods", "text"),
    [
        ([], "waiting for the head's pod (Running)"),
        (
            [pod("head", **UNSCHEDULED)],
            "waiting for words-1-head-0: Pending: 0/3 nodes are available: "
            "3 Insufficient huawei.com/Ascend910.",
        ),
        ([pod("head")], "waiting for the driver (Running)"),
    ],
)
def test_what_is_waited_for_is_told(watch, server, pods, text: str) -> None:
    server.pods = pods
    found = watch()

    assert found.news().events == []
    standing = found.status(RunActivity(), 0.0)
    assert (standing.over, standing.text) == (False, text)


def test_an_attempt_that_failed_is_followed_by_the_next(run, watch, server) -> None:
    run.events = make_events(steps=2, finished="failed")
    run.write()
    found, pulse = watch(), RunActivity()
    pulse.add(found.news())

    between = found.status(pulse, 0.0)
    server.jobs = [ended("Failed")]
    found.news()

    assert (between.over, between.text) == (
        False,
        "the attempt has ended; waiting for what follows",
    )
    assert found.status(pulse, 0.0).over


def test_a_job_that_ended_without_its_pods_tells_where_its_run_lies(watch, server) -> None:
    server.pods, server.jobs = [], [ended("Succeeded")]
    found = watch()
    found.news()

    standing = found.status(RunActivity(), 0.0)

    assert (standing.over, standing.code) == (True, 0)
    assert standing.text == (
        "the job has ended (Succeeded); "
        "the run's folder is research/words-0b9dd3a5 on PersistentVolumeClaim runs"
    )


def test_an_api_server_that_is_away_is_waited_for_until_a_deadline(watch, server) -> None:
    now = [0.0]
    found = watch(lambda: now[0])
    server.refusals = {f"{CORE}/pods": refusal(503, "down")}

    now[0] = PATIENCE_SECONDS - 1
    waited = found.news().events
    told = found.status(RunActivity(), 0.0)
    server.refusals = {f"{CORE}/pods": refusal(503, "down")}
    now[0] = PATIENCE_SECONDS + 1

    assert waited == [] and "503 down" in told.text
    with pytest.raises(NoAnswer, match="503 down"):
        found.news()


def test_a_job_that_was_deleted_is_told(watch, server) -> None:
    found = watch()
    server.jobs = []

    with pytest.raises(ClusterError, match="namespace research has no RLJob 'words'"):
        found.news()


def test_who_may_not_open_shells_is_told_what_to_ask_for(run, server, rljob) -> None:
    server.refusals = {f"{CORE}/pods/words-1-head-0/exec": refusal(403, "pods is forbidden")}

    result = rljob("watch", "words")

    assert result.exit_code == 2
    assert "ask for a role that may get and create pods/exec in namespace research" in result.stderr


def test_a_name_that_is_no_folder_and_no_job_is_told(server, rljob) -> None:
    result = rljob("watch", "wrods")

    assert result.exit_code == 2
    assert "wrods is no folder here, so the cluster is asked for a job: namespace" in result.stderr
    assert any(path.startswith(JOBS) for path, _ in server.requests)


def test_the_page_has_the_jobs_run_and_its_spec(run, watch) -> None:
    run.write()
    (run.folder / "rljob.yaml").write_text("kind: RLJob\n")

    told = json.loads(LiveRun(watch()).answer("", 0))

    assert told["parts"]["name"] == "spell-backward-grpo"
    assert told["parts"]["spec"] == "kind: RLJob\n"
    assert told["parts"]["status"]["step"] == 4


def test_the_page_has_the_jobs_traces(run, watch) -> None:
    run.write()
    name = run.record(2, b"trace")
    found = LiveRun(watch())

    read = found.trace(name)

    assert read is not None and (piece := read(0)) is not None
    assert (piece.size, piece.data) == (5, b"trace")
    assert found.trace("events.jsonl") is None
