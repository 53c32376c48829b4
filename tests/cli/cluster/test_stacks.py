"""`rljob stacks NAME`: the same command in the container of the job's head, where its driver is."""

from kube_manifests import FOLDER, JOB, PODS

from rljob_runtime.cli.cluster.exec import OUTPUT_BYTES

SUMMARY = "asked: asked for\n\nmissing:\n  reward-0 is in score\n"


def test_a_jobs_head_is_asked_and_its_answer_printed(server, rljob):
    server.jobs, server.pods = [JOB], PODS
    server.says = {f"rljob stacks {FOLDER}": SUMMARY}

    result = rljob("stacks", "words")

    assert (result.exit_code, result.stdout) == (0, SUMMARY)


def test_a_head_that_cannot_tell_says_so(server, rljob):
    server.jobs, server.pods = [JOB], PODS

    result = rljob("stacks", "words")

    assert result.exit_code == 2
    assert "words is no folder here, so the cluster is asked for a job" in result.stderr
    assert "pod " in result.stderr


def test_a_folder_without_a_living_run_is_refused(rljob, tmp_path):
    (tmp_path / "here" / "words").mkdir()

    result = rljob("stacks", "words")

    assert result.exit_code == 2
    assert "words: no run lives there; name the folder of a run that runs now" in result.stderr


def test_a_head_that_says_too_much_is_not_heard_to_its_end(server, rljob):
    server.jobs, server.pods = [JOB], PODS
    server.says = {f"rljob stacks {FOLDER}": "x" * (OUTPUT_BYTES + 1)}

    result = rljob("stacks", "words")

    assert result.exit_code == 2
    assert f"rljob stacks says more than {OUTPUT_BYTES} bytes" in result.stderr
