"""The workflow of GitHub and the script for other machines run the same parts."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / ".ci/run"


def targets_of(text: str) -> list[str]:
    return re.findall(r"\bmake ([a-z0-9-]+)(?= |$)", re.sub(r"(#|part) .*", "", text), re.MULTILINE)


def test_the_workflow_calls_the_targets_of_the_script_in_their_order() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text())

    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    called = [target for step in steps for target in targets_of(step.get("run", ""))]

    assert called == targets_of(SCRIPT.read_text()) == ["run", "check", "test", "e2e"]


def test_both_repeat_failed_tests() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yaml").read_text())

    assert f"REPEAT_FAILED:-{workflow['env']['REPEAT_FAILED']}" in SCRIPT.read_text()


def test_what_is_left_to_the_night_has_a_workflow() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/nightly.yaml").read_text())
    jobs = workflow["jobs"]

    assert {"nightly", "fuzz", "bench"} <= set(jobs["tests"]["strategy"]["matrix"]["target"])
    assert any("-m nightly" in step.get("run", "") for step in jobs["e2e"]["steps"])
