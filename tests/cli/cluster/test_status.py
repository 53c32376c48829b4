"""`rljob status`: what it shows, word for word, and what it gives to programs."""

import json
from pathlib import Path

import pytest
from aiohttp import web
from kube_manifests import EVENTS, JOB, NOW, PODS, UID, ended, job, pod
from kube_server import CORE, JOBS, refusal
from rich.console import Console

from rljob_runtime.cli.cluster.job_facts import age, head_pod, seconds_since, state
from rljob_runtime.cli.cluster.job_page import SHOWN_PODS, JobSnapshot, page

PAGE = Path(__file__).with_name("page.txt")


def trimmed(text):
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def text_of(seen, width=100):
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(page(seen, unix_s=NOW, width=width))
    return trimmed(captured.get())


def test_one_job_on_one_page(server, rljob):
    server.jobs, server.pods, server.events = [JOB], PODS, EVENTS

    result = rljob("status", "words")

    assert result.exit_code == 0
    assert trimmed(result.stdout) == PAGE.read_text()


def test_pods_and_events_are_asked_for_by_the_jobs_uid(server, rljob):
    server.jobs = [JOB]

    rljob("status", "words")

    asked = dict(server.requests)
    assert asked[f"{CORE}/pods"]["labelSelector"] == f"rljob.io/job-uid={UID}"
    assert asked[f"{CORE}/events"]["fieldSelector"] == f"involvedObject.uid={UID}"


def test_without_a_name_all_jobs_of_the_namespace(server, rljob):
    young = job(phase=None, progress={}, devices="0/8", restarts=0)
    young["metadata"]["name"] = "another"
    server.jobs = [JOB, young]

    result = rljob("status")

    assert trimmed(result.stdout) == (
        "name      phase       step   reward   tokens/s   devices   restarts   age\n"
        "─────────────────────────────────────────────────────────────────────────\n"
        "another   Pending        –        –          –       0/8          0   20m\n"
        "words     Running   35/140    0.613      3 649     16/16          1   20m\n"
    )


def test_a_job_that_is_nested_as_deeply_as_kubernetes_takes_it_hides_no_other(server, rljob):
    deep = json.dumps({"items": [job(), {**JOB, "spec": {"p": "HERE"}}]})
    text = deep.replace('"HERE"', "[" * 9_000 + "]" * 9_000)
    server.refusals[JOBS] = web.Response(text=text, content_type="application/json")

    result = rljob("status")

    assert result.exit_code == 0
    assert result.stdout.count("words ") == 2


def test_a_namespace_without_jobs_is_said_to_have_none(server, rljob):
    result = rljob("status")

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("namespace research has no RLJobs (context lab, http://")


def test_json_is_the_object_as_the_cluster_has_it(server, rljob):
    server.jobs = [JOB]

    assert json.loads(rljob("status", "words", "--json").stdout) == JOB
    assert json.loads(rljob("status", "--json").stdout)["items"] == [JOB]


def test_a_user_who_may_not_list_pods_sees_the_rest(server, rljob):
    server.jobs = [JOB]
    server.refusals[f"{CORE}/pods"] = refusal(403, "User me cannot list pods")

    result = rljob("status", "words")

    assert result.exit_code == 0
    assert "step 35/140" in result.stdout
    assert "note: no pods: forbidden: User me cannot list pods" in result.stdout


def test_a_job_that_has_just_been_made_has_a_page(server, rljob):
    fresh = {key: value for key, value in JOB.items() if key != "status"}
    server.jobs = [fresh]

    lines = rljob("status", "words").stdout.splitlines()

    assert lines[0].split() == ["words", "research", "Pending", "20:00"]
    assert lines[1:] == [
        "no step has ended yet",
        "reward –    tokens/s –    devices –    attempt –    restarts 0",
    ]


def test_spare_nodes_are_told_beside_the_devices(server, rljob):
    server.jobs = [JOB | {"status": JOB["status"] | {"spareNodes": "1/2"}}]

    page = rljob("status", "words").stdout

    assert "devices 16/16    spare nodes 1/2    attempt" in page


def test_the_clock_of_a_job_stops_when_it_ends():
    assert text_of(JobSnapshot(job=ended("Succeeded"))).splitlines()[0].endswith("Succeeded  18:59")


def test_of_many_pods_those_that_are_not_ready_are_named():
    many = [pod("worker", index) for index in range(SHOWN_PODS)]
    lost = pod("worker", 99, phase="Failed", reason="Evicted", conditions=[], containerStatuses=[])

    shown = text_of(JobSnapshot(job=JOB, pods=[*many, lost]))

    assert "words-1-worker-99   Evicted" in shown
    assert f"worker   13 pods             {SHOWN_PODS} of them ready" in shown
    assert "words-1-worker-0" not in shown


def test_only_the_last_failure_is_told_in_full():
    failures = [
        {"attempt": n, "reason": "DriverFailed", "message": f"first {n}\nlast {n}", "time": when}
        for n, when in enumerate(("2026-03-01T11:50:00Z", "2026-03-01T11:55:00Z"))
    ]

    shown = text_of(JobSnapshot(job=job(failures=failures)))

    assert "first 0" not in shown
    assert all(line in shown for line in ("last 0", "first 1", "last 1"))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"containerStatuses": [{"name": "ray-head", "state": {"waiting": {
            "reason": "ImagePullBackOff", "message": "not found"}}}]}, "ImagePullBackOff: not found"),
        ({"containerStatuses": [{"name": "ray-head", "state": {"terminated": {
            "reason": "OOMKilled", "exitCode": 137}}}]}, "OOMKilled, exit code 137"),
        ({"initContainerStatuses": [{"name": "wait-gcs-ready", "state": {"waiting": {
            "reason": "ErrImagePull", "message": "denied"}}}],
          "containerStatuses": [{"name": "ray-worker", "state": {"waiting": {
            "reason": "PodInitializing"}}}]}, "ErrImagePull: denied"),
        ({"initContainerStatuses": [{"name": "wait-gcs-ready", "state": {"running": {}}}],
          "containerStatuses": [{"name": "ray-worker", "state": {"waiting": {
            "reason": "PodInitializing"}}}]}, "PodInitializing"),
        ({"conditions": []}, "Running, not ready"),
        ({}, "Running"),
    ],
)  # fmt: skip
def test_a_pods_state_says_what_keeps_it_from_running(status, said):
    assert state(pod("head", **status)) == said


def test_a_pod_that_is_being_deleted_is_terminating():
    gone = pod("head")
    gone["metadata"]["deletionTimestamp"] = "2026-03-01T11:59:00Z"

    assert state(gone) == "Terminating"


def test_the_head_is_the_present_clusters():
    old, new, worker = pod("head", cluster="words-0"), pod("head"), pod("worker")

    assert head_pod(JOB, [new, old, worker]) is new
    assert head_pod(job(rayCluster={}), [old, worker]) is old
    assert head_pod(JOB, [worker]) is None


def test_ages_read_as_kubectls():
    seconds = [0.4, 59, 119, 120, 7199, 7200, 172799, 172800, seconds_since(None, NOW)]

    shown = [age(value) for value in seconds]

    assert shown == ["0s", "59s", "119s", "2m", "119m", "2h", "47h", "2d", "–"]
