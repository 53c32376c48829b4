"""Two jobs of a namespace at once: their bits, and what is seen of one that trains."""

import base64
import hashlib
import json
import re
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cluster import RLJOB as RLJOB_RESOURCE
from support.cluster import Cluster, Manifest
from support.jobs import THREADS, TWO_JOBS, ended, events_of, holds, small, step
from support.tools import ROOT, run

COMMAND_SECONDS = 180.0
ALONE_SECONDS = 400.0
FORWARD_SECONDS = 60.0
STATUS_PORT = 8266
RLJOB = ".venv/bin/rljob"
OPERATOR = "app.kubernetes.io/component=operator"
FIGURES = ("reward/mean", "response_length/mean", "entropy", "loss", "gradient_norm")


@pytest.fixture(scope="module")
def cluster(two_jobs: Cluster) -> Cluster:
    return two_jobs


def test_upgrades_of_chart_and_operator_leave_running_and_suspended_jobs_alone(
    release: Cluster, cluster: Cluster, values: list[str], tmp_path: Path
) -> None:
    """To the chart before the last change of it, and back, each with operator pods of its own."""
    before = {name: cluster.job(name) for name in TWO_JOBS}
    pods, operators = uids(cluster.pods("first")), set[str]()
    charts = ["git", "log", "-1", "--skip=1", "--format=%H", "--", "helm/rljob"]
    earlier = run(charts, seconds=30).strip()
    if not earlier:
        pytest.skip("there is no earlier chart in this checkout's history")
    run(["sh", "-c", f"git archive {earlier} helm/rljob | tar -x -C {tmp_path}"], seconds=30)
    upgrade = ["helm", "upgrade", "rljob", "-n", release.namespace, "--wait", "--timeout", "120s"]

    def install(source: Path) -> set[str]:
        mark = ["--set", f"podAnnotations.chart={source.name}"]
        run([*upgrade, str(source / "helm/rljob"), *values, *mark], seconds=180)
        return uids(release.objects("Pod", selector=OPERATOR))

    try:
        operators |= install(tmp_path)
        # In the version that every chart serves.
        cluster.apply(small("kept", suspend=True) | {"apiVersion": RLJOB_RESOURCE[0]})
    finally:  # the tests that follow need this one's definitions
        operators |= install(ROOT)
    cluster.wait_for_job(
        "first",
        "the new operator tells of progress",
        lambda job: step(job) > step(before["first"]) + 2,
        seconds=120,
    )
    kept = cluster.wait_for_job(
        "kept", "the new operator looks after it", lambda job: holds(job, "Suspended"), seconds=60
    )

    assert len(operators) >= 2
    assert uids(cluster.pods("first")) == pods
    for name, what in product(TWO_JOBS, ("attempt", "rayCluster")):
        assert cluster.job(name)["status"][what] == before[name]["status"][what]
    assert kept["spec"]["suspend"] is True
    cluster.delete_job("kept")


def uids(objects: list[Manifest]) -> set[str]:
    """Of those that are not on their way out."""
    metadata = [each["metadata"] for each in objects]
    return {each["uid"] for each in metadata if "deletionTimestamp" not in each}


def test_two_jobs_of_a_namespace_train_at_once_each_with_its_own_token_and_pods(
    cluster: Cluster,
) -> None:
    tokens = {
        secret["data"]["auth_token"]
        for name in TWO_JOBS
        for secret in cluster.objects("Secret", selector=f"rljob.io/job={name}")
    }
    done = cluster.wait_for_job("second", "the second has ended", ended, seconds=300)

    assert len(tokens) == 2
    assert holds(done, "Succeeded"), cluster.dump("second")
    assert holds(cluster.job("first"), "Running")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where runs on this machine keep the warmed-up model, which both jobs begin with."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.parametrize(("name", "steps"), [("first", 4), ("second", 12)])
def test_pods_train_as_one_machine_does(
    cluster: Cluster, cache: Path, tmp_path: Path, name: str, steps: int
) -> None:
    reached = cluster.wait_for_job(
        name, f"{name} has done {steps} steps", lambda job: step(job) >= steps, seconds=180
    )
    in_pods = events_of(cluster, name)

    alone = events_alone(small(name, **TWO_JOBS[name] | {"steps": steps}), tmp_path, cache)

    if (there := built_on(in_pods)) != (here := built_on(alone)):
        pytest.skip(f"bits repeat on one kind of machine: {there} in the pods, {here} here")
    found, expected = figures(in_pods, steps), figures(alone, steps)
    assert len(expected) == steps * len(FIGURES)
    differ = {
        place: f"{found.get(place)} in the pods, {value} on one machine"
        for place, value in expected.items()
        if found.get(place) != value
    }
    assert differ == {}
    if ended(reached):
        trained, digest = checkpoint_of(in_pods), sha256(checkpoint_of(alone))
        assert cluster.run(cluster.head(name), "sha256sum", trained).split()[0] == digest


def events_alone(job: Manifest, folder: Path, cache: Path) -> list[dict[str, Any]]:
    """Those of the same job by `rljob run --local` on this machine."""
    file, output = folder / "job.yaml", folder / "run"
    file.write_text(yaml.safe_dump(job))
    variables = [f"RLJOB_CACHE={cache}", f"{THREADS['name']}={THREADS['value']}"]
    command = [RLJOB, "run", str(file), "--local", "--output", str(output)]
    run(["env", *variables, *command], seconds=ALONE_SECONDS)
    return [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]


def built_on(events: list[dict[str, Any]]) -> dict[str, str]:
    """What a run's bits follow from beside the job, as its driver sees it."""
    begun = next(event for event in events if event["kind"] == "run_started")
    machine = {name: begun["machine"][name] for name in ("processor", "cores")}
    return machine | {"torch": begun["versions"]["torch"]}


def figures(events: list[dict[str, Any]], steps: int) -> dict[str, float]:
    """Metrics of the first steps, by step and name."""
    return {
        f"step {event['step']}, {name}": event["metrics"][name]
        for event in events
        if event["kind"] == "step" and event["step"] <= steps
        for name in FIGURES
    }


def checkpoint_of(events: list[dict[str, Any]]) -> str:
    """The weights that a run ended with."""
    path = [event["path"] for event in events if event["kind"] == "checkpoint"][-1]
    return f"{path}/model/model.safetensors"


def sha256(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def test_stacks_of_a_running_job_tell_where_its_processes_stand(cluster: Cluster) -> None:
    said = run([RLJOB, "stacks", "first", "-n", cluster.namespace], seconds=COMMAND_SECONDS)

    assert "device-0" in said
    assert "/hangs/" in said.splitlines()[-1]


def test_watch_shows_a_running_job_and_leaves_it_alone(cluster: Cluster, tmp_path: Path) -> None:
    screen = tmp_path / "screen"
    with screen.open("w") as output:
        words = [RLJOB, "watch", "first", "-n", cluster.namespace]
        watching = subprocess.Popen(words, cwd=ROOT, stdout=output, stderr=output)
    deadline = time.monotonic() + COMMAND_SECONDS
    try:
        while not re.search(r"step +\d+/5000", screen.read_text()):
            assert watching.poll() is None, screen.read_text()
            assert time.monotonic() < deadline, f"no step is shown: {screen.read_text()}"
            time.sleep(1)
    finally:
        watching.terminate()
        watching.wait(30)

    assert holds(cluster.job("first"), "Running")


def test_a_running_job_shows_its_page_to_who_has_its_token(
    cluster: Cluster, tmp_path: Path
) -> None:
    (secret,) = cluster.objects("Secret", selector="rljob.io/job=first")
    token = base64.b64decode(secret["data"]["auth_token"]).decode()

    with forwarded(cluster, cluster.head("first"), tmp_path / "forward") as port:
        refused, _ = asked(f"http://127.0.0.1:{port}/live", token="another")
        code, body = asked(f"http://127.0.0.1:{port}/live", token=token)

    assert (refused, code) == (401, 200)
    assert json.loads(body)["parts"]["name"] == "first"


@contextmanager
def forwarded(cluster: Cluster, pod: str, screen: Path) -> Iterator[int]:
    """A port of this machine that `kubectl port-forward` leads to the head's status port."""
    words = ["kubectl", "port-forward", f"pod/{pod}", f":{STATUS_PORT}", "-n", cluster.namespace]
    with screen.open("w") as output:
        forwarding = subprocess.Popen(words, stdout=output, stderr=output)
    deadline = time.monotonic() + FORWARD_SECONDS
    try:
        while not (found := re.search(r"127\.0\.0\.1:(\d+) ->", screen.read_text())):
            assert forwarding.poll() is None, screen.read_text()
            assert time.monotonic() < deadline, f"no port is forwarded: {screen.read_text()}"
            time.sleep(0.2)
        yield int(found[1])
    finally:
        forwarding.terminate()
        forwarding.wait(30)


def asked(address: str, *, token: str) -> tuple[int, bytes]:
    """Status and body of an answer."""
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=FORWARD_SECONDS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""
