"""`rljob logs`: the head's log, followed over what goes wrong, and the file of one attempt."""

import itertools

import pytest
from kube_manifests import FOLDER, JOB, NOW, PODS, ended, job, pod

from rljob_runtime.cli.cluster.logs import PATIENCE_SECONDS, follow_log
from rljob_runtime.errors import NoAnswer, NotThere

WAITING = {"name": "ray-head", "state": {"waiting": {"reason": "ImagePullBackOff"}}}
HEAD = "words-1-head-0"


def timed(second, text):
    return f"2026-03-01T11:59:{second:02}.000000001Z {text}"


def test_the_log_is_the_heads(server, rljob):
    server.jobs, server.pods = [JOB], PODS
    server.logs[HEAD] = [[timed(1, "step 1/140  reward 0.1"), timed(2, ""), timed(3, "done")]]

    result = rljob("logs", "words", "--tail", "3")

    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "step 1/140  reward 0.1\n\ndone\n"
    path, query = server.requests[-1]
    assert path.endswith(f"/pods/{HEAD}/log")
    assert (query["container"], query["tailLines"]) == ("ray-head", "3")


def test_a_followed_log_ends_with_the_job(server, rljob, monkeypatch):
    monkeypatch.setattr("rljob_runtime.cli.cluster.logs.QUIET_SECONDS", 0.3)
    server.jobs, server.pods = [ended("Succeeded")], [pod("head")]
    server.logs[HEAD] = [[timed(1, "last words")]]

    result = rljob("logs", "words", "-f")

    assert (result.exit_code, result.stdout) == (0, "last words\n")


def test_a_followed_log_that_falls_silent_is_given_up_and_not_shown_twice(
    server, rljob, monkeypatch
):
    monkeypatch.setattr("rljob_runtime.cli.cluster.logs.QUIET_SECONDS", 0.3)
    monkeypatch.setattr("rljob_runtime.cli.cluster.logs.PAUSE_SECONDS", 0)
    server.jobs, server.pods = [JOB], [pod("head")]
    server.logs[HEAD] = [[timed(1, "one")], [timed(1, "one"), timed(2, "two")]]
    endings = iter([None, None])
    monkeypatch.setattr(
        "rljob_runtime.cli.cluster.logs.ending", lambda job: next(endings, "Succeeded")
    )

    assert rljob("logs", "words", "-f").stdout == "one\ntwo\n"


def test_one_attempt_is_read_from_the_runs_folder(server, rljob):
    server.jobs, server.pods = [JOB], PODS
    server.files[f"{FOLDER}/driver-0.log"] = b"first\nsecond \xff\nthird\n"

    assert rljob("logs", "words", "--attempt", "0").stdout == "first\nsecond �\nthird\n"
    assert rljob("logs", "words", "--attempt", "0", "--tail", "1").stdout == "third\n"
    missing = rljob("logs", "words", "--attempt", "7")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert missing.stderr == f"{FOLDER}/driver-7.log does not exist in pod {HEAD}\n"


def test_an_attempts_file_is_not_followed(rljob):
    assert rljob("logs", "words", "-f", "--attempt", "0").exit_code == 2


def test_without_a_head_the_claim_is_named(server, rljob):
    server.jobs = [job(phase="Suspended")]

    result = rljob("logs", "words")

    assert result.exit_code == 2
    assert result.stderr == (
        "words has no head pod (Suspended); the run's folder is research/words-0b9dd3a5 "
        "on PersistentVolumeClaim runs\n"
    )


def test_a_job_that_has_not_begun_has_nothing_to_say(server, rljob):
    server.jobs = [job(phase="Pending", attempt=None)]

    assert rljob("logs", "words").stderr == (
        "words has not begun (Pending); rljob status words tells why\n"
    )


def test_a_head_that_has_not_started_is_said_to_wait(server, rljob):
    server.jobs, server.pods = [JOB], [pod("head", containerStatuses=[WAITING])]

    result = rljob("logs", "words")

    assert result.stderr == f"{HEAD} has not started: ImagePullBackOff; use -f to wait\n"


class Cluster:
    """A job whose states, heads and logs come in turn; time passes in pauses alone."""

    def __init__(self, *, jobs, heads, logs):
        self._jobs, self._heads, self._logs = iter(jobs), iter(heads), iter(logs)
        self.now, self.asked, self.told = NOW, [], []

    def job(self, name):
        return self._answer(next(self._jobs))

    def pods(self, uid):
        head = next(self._heads)
        return [head] if head else []

    def log(self, pod, **options):
        self.asked.append((pod, options["since_seconds"], options["tail"]))
        for line in next(self._logs):
            yield self._answer(line)

    def _answer(self, answer):
        if isinstance(answer, Exception):
            raise answer
        return answer

    def sleep(self, seconds):
        self.now += seconds

    def lines(self, tail=None):
        return list(
            follow_log(
                self,
                "words",
                tail=tail,
                report=self.told.append,
                sleep=self.sleep,
                clock=lambda: self.now,
            )
        )


def test_a_new_head_is_followed_from_its_first_line():
    cluster = Cluster(
        jobs=[JOB, JOB, JOB, JOB, ended("Failed")],
        heads=[pod("head"), None, None, pod("head", cluster="words-2"), pod("head", 9)],
        logs=[[timed(5, "a")], [timed(1, "b")], [timed(2, "c")]],
    )

    assert cluster.lines(tail=10) == ["a", "b", "c"]
    assert cluster.told == ["waiting for the head's pod (Running)"]
    assert [tail for _, _, tail in cluster.asked] == [10, None, None]


def test_a_log_is_taken_up_where_it_broke_off():
    cluster = Cluster(
        jobs=[JOB, JOB, ended("Succeeded")],
        heads=itertools.repeat(pod("head")),
        logs=[
            [timed(40, "a"), timed(50, "b"), NoAnswer("broken")],
            [timed(50, "b"), timed(51, "c"), timed(51, "c")],
            [],
        ],
    )

    assert cluster.lines() == ["a", "b", "c", "c"]
    assert [since for _, since, _ in cluster.asked] == [None, 17, 18]


def test_what_a_node_says_without_a_time_is_shown():
    lost = "unable to retrieve container logs for containerd://0123"

    assert Cluster(jobs=[ended("Failed")], heads=[pod("head")], logs=[[lost]]).lines() == [lost]


def test_a_pod_that_goes_while_it_is_asked_is_no_end():
    cluster = Cluster(
        jobs=[JOB, ended("Failed")],
        heads=itertools.repeat(pod("head")),
        logs=[[NotThere("gone")], [timed(1, "a")]],
    )

    assert cluster.lines() == ["a"]


def test_a_deleted_job_ends_the_following():
    with pytest.raises(NotThere):
        Cluster(jobs=[NotThere("deleted")], heads=[], logs=[]).lines()


def test_a_server_that_stays_away_ends_the_following():
    cluster = Cluster(jobs=itertools.repeat(NoAnswer("away")), heads=[], logs=[])

    with pytest.raises(NoAnswer):
        cluster.lines()

    assert cluster.now - NOW >= PATIENCE_SECONDS
