"""Following one job to its end: over watches that end, versions that are forgotten, servers away."""

import json

import pytest
from kube_manifests import JOB, ended, job

from rljob_runtime.cli.cluster.watch import LAST_PAUSE_SECONDS, PATIENCE_SECONDS, follow
from rljob_runtime.errors import NoAnswer, NotThere

FORGOTTEN = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old"}}


def at_step(step, version):
    found = job(progress={"step": step, "totalSteps": 140})
    found["metadata"]["resourceVersion"] = str(version)
    return found


def change(manifest, kind="MODIFIED"):
    return {"type": kind, "object": manifest}


class Cluster:
    """Answers in turn; an exception among them is raised. Time passes in pauses alone."""

    def __init__(self, *, watches=(), jobs=()):
        self.watches, self.jobs = list(watches), list(jobs)
        self.versions, self.now, self.pauses = [], 0.0, []

    def job(self, name):
        return self._next(self.jobs)

    def watch(self, name, version):
        self.versions.append(version)
        yield from self._next(self.watches)

    def _next(self, answers):
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds):
        self.now += seconds
        self.pauses.append(seconds)

    def follow(self, job=JOB):
        for seen in follow(self, job, sleep=self.sleep, clock=lambda: self.now):
            yield seen["status"].get("progress", {}).get("step"), seen["status"]["phase"]


def test_each_change_is_seen_until_the_end_and_no_further():
    last = change(ended("Succeeded"))
    cluster = Cluster(watches=[[change(at_step(36, 101)), last, change(at_step(0, 200))]])

    assert list(cluster.follow()) == [(35, "Running"), (36, "Running"), (35, "Succeeded")]
    assert cluster.versions == ["100"]


def test_a_job_that_has_ended_is_not_watched():
    assert list(Cluster().follow(ended("Failed"))) == [(35, "Failed")]


def test_a_watch_that_the_server_ends_goes_on_where_it_was():
    bookmark = change({"metadata": {"resourceVersion": "150"}}, "BOOKMARK")
    cluster = Cluster(watches=[[change(at_step(36, 101)), bookmark], [change(ended("Failed"))]])

    list(cluster.follow())

    assert cluster.versions == ["100", "150"]
    assert cluster.pauses == []


def test_a_version_that_is_forgotten_makes_the_job_be_read_anew():
    cluster = Cluster(watches=[[FORGOTTEN], [change(ended("Succeeded"))]], jobs=[at_step(90, 500)])

    assert list(cluster.follow())[1] == (90, "Running")
    assert cluster.versions == ["100", "500"]


def test_what_did_not_change_is_not_told_again():
    cluster = Cluster(watches=[[FORGOTTEN], [change(ended("Succeeded"))]], jobs=[JOB])

    assert len(list(cluster.follow())) == 2


def test_a_watch_that_ends_at_once_for_ever_does_not_spin():
    cluster = Cluster(watches=[[], [], [], [change(ended("Failed"))]], jobs=[JOB])

    list(cluster.follow())

    assert len(cluster.pauses) == 3


def test_a_server_that_is_away_for_a_while_is_waited_for():
    away = NoAnswer("away")
    cluster = Cluster(
        watches=[[change(at_step(36, 101))], away, [change(ended("Succeeded"))]],
        jobs=[away, away, at_step(40, 120)],
    )

    assert [step for step, _ in cluster.follow()] == [35, 36, 40, 35]
    assert cluster.pauses == [1.0, 2.0, 4.0]


def test_a_server_that_stays_away_is_told_after_two_minutes():
    cluster = Cluster(watches=[NoAnswer("away")], jobs=[NoAnswer("away")])

    with pytest.raises(NoAnswer):
        list(cluster.follow())

    assert PATIENCE_SECONDS <= cluster.now <= PATIENCE_SECONDS + LAST_PAUSE_SECONDS


def test_a_job_that_is_deleted_or_made_anew_is_no_longer_followed():
    other = at_step(0, 300)
    other["metadata"]["uid"] = "another"

    for last in (change(JOB, "DELETED"), change(other, "ADDED")):
        with pytest.raises(NotThere, match=r"^words was deleted$"):
            list(Cluster(watches=[[last]]).follow())
    with pytest.raises(NotThere, match=r"^words was deleted$"):
        list(Cluster(watches=[[FORGOTTEN]], jobs=[NotThere("no")]).follow())


@pytest.mark.parametrize(("how", "code"), [("Succeeded", 0), ("Failed", 1)])
def test_the_exit_code_tells_how_the_job_ended(server, rljob, how, code):
    server.jobs = [JOB]
    server.watches = [[FORGOTTEN], [change(at_step(36, 101)), change(ended(how))]]

    result = rljob("status", "words", "--watch")

    assert result.exit_code == code
    assert result.stdout.splitlines() == [
        "Running  step 35/140  reward 0.613  tokens/s 3 649  eta 12:34  devices 16/16  restarts 1",
        "Running  step 36/140  devices 16/16  restarts 1",
        f"{how}  step 35/140  reward 0.613  tokens/s 3 649  eta 12:34  devices 16/16  restarts 1",
    ]
    watched = [query for path, query in server.requests if "watch" in query]
    assert [query["resourceVersion"] for query in watched] == ["100", "100"]
    assert watched[0]["fieldSelector"] == "metadata.name=words"


def test_programs_get_an_object_a_line(server, rljob):
    server.jobs, server.watches = [JOB], [[change(ended("Succeeded"))]]

    lines = rljob("status", "words", "--watch", "--json").stdout.splitlines()

    assert [json.loads(line)["status"]["phase"] for line in lines] == ["Running", "Succeeded"]


def test_watching_wants_a_name(rljob):
    result = rljob("status", "--watch")

    assert result.exit_code == 2
    assert result.stderr == "--watch follows one job: rljob status NAME --watch\n"


def test_a_terminal_keeps_one_page_and_ends_with_the_last(server, rljob, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    server.jobs, server.watches = [JOB], [[change(ended("Failed"))]]

    result = rljob("status", "words", "--watch")

    assert result.exit_code == 1
    assert "as said" in result.stdout.rpartition("StepsDone")[2]
