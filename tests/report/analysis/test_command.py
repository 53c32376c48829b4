"""`rljob analyze`: tables, JSON, and what it says where it cannot tell."""

import json

import yaml
from typer.testing import CliRunner

from rljob_runtime.cli.main import app


def asked(*words):
    return CliRunner().invoke(app, ["analyze", *map(str, words)], env={"COLUMNS": "120"})


def test_a_terminal_shows_the_bottleneck_its_evidence_and_yaml_to_paste(run_folder):
    done = asked(run_folder(4))

    assert done.exit_code == 0, done.output
    for text in (
        "made: 10 s a step (median of steps 2 to 4)",
        "bottleneck: reward, 3.0 s or 30 % of a step",
        "the last fifth of the samples takes 50 % of generation",
        "partialRollout:\n      budgetTokens: 24",
        "estimate:",
    ):
        assert text in done.output


def test_json_has_all_parts_and_changes(run_folder):
    found = json.loads(asked(run_folder(4), "--json").output)

    assert found["bottleneck"] == "reward"
    assert sum(part["seconds"] for part in found["parts"].values()) == 10
    assert all(yaml.safe_dump(advice["change"]) for advice in found["advice"])


def test_a_folder_without_events_is_refused(tmp_path):
    done = asked(tmp_path)

    assert done.exit_code == 2
    assert f"{tmp_path} holds no events.jsonl; name the folder of a run" in done.output


def test_too_few_steps_are_refused_with_how_many_it_takes(run_folder):
    done = asked(run_folder(2))

    assert done.exit_code == 2
    assert "made has 2 steps that are done" in done.output
    assert "needs 3 or more" in done.output


def test_without_the_job_the_bottleneck_is_told_and_no_change(run_folder):
    folder = run_folder(4)
    (folder / "rljob.yaml").unlink()

    found = json.loads(asked(folder, "--json").output)

    assert (found["bottleneck"], found["advice"]) == ("reward", [])
    assert "rljob.yaml" in found["noAdviceBecause"]
