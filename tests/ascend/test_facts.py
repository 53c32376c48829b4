"""The pinned facts of Ascend's projects, and the script that holds another release to them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from scripts.ascend_facts import PINNED, Fact, Release, compare, find, pin, pinned, read_release

FACT = Fact(
    name="mode",
    says="the mode is 1",
    file="project/worker.py",
    line=2,
    finds=r"mode = (\d)",
    value="1",
    ours="runtime/rljob_runtime/rollout/vllm_start.py",
)
RELEASE = Release(project="project", release="1.0", package="project", facts=(FACT,))


@pytest.fixture
def source(tmp_path):
    """A folder with one file of the project."""

    def write(text, file="project/worker.py"):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path

    return write


def test_each_fact_has_a_line_and_a_file_of_ours_that_builds_on_it():
    releases = pinned()

    assert {"vllm-ascend", "mindspeed", "mindcluster"} <= {one.project for one in releases}
    for release in releases:
        for fact in release.facts:
            assert fact.line > 0 and Path(fact.ours).is_file(), (release.project, fact.name)
            assert re.compile(fact.finds).groups or not fact.value, (release.project, fact.name)


def test_a_fact_that_stands_elsewhere_still_holds(source):
    root = source("\n\n\nmode = 1\n", "project/moved/to.py")

    ((told, holds),) = compare(RELEASE, root)

    assert holds and "project/moved/to.py:4" in told


def test_a_fact_with_another_value_is_told_with_both_and_what_builds_on_it(source):
    ((told, holds),) = compare(RELEASE, source("\n\nmode = 2\n"))

    assert not holds and told.startswith("changed")
    for part in ("'1' at project/worker.py:2", "'2' at project/worker.py:3", FACT.ours):
        assert part in told


def test_a_fact_that_is_not_found_is_gone(source):
    ((told, holds),) = compare(RELEASE, source("mode: int\n"))

    assert not holds and told.startswith("gone") and FACT.ours in told


def test_what_is_pinned_anew_is_read_again_as_it_was_found(source, tmp_path):
    root = source("\nmode = 2\n")
    file = tmp_path / "project-2.0.toml"

    file.write_text(pin(RELEASE, "2.0", root))

    again = read_release(file)
    assert (again.release, again.facts) == ("2.0", (find(FACT, root),))


def test_the_script_ends_with_1_where_a_release_changes_something(source):
    root = source('"VLLM_ASCEND_ENABLE_NZ", 0', "vllm_ascend/envs.py")
    command = [sys.executable, "scripts/ascend_facts.py", "vllm-ascend", str(root)]

    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert ended.returncode == 1
    assert "changed  nz-by-default" in ended.stdout
    assert len(ended.stdout.splitlines()) == len(pinned("vllm-ascend")[-1].facts)
    assert PINNED.is_dir()
