"""`rljob diff`: two runs' jobs, metrics, times and accuracies beside each other."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from page_data import page_data
from typer.testing import CliRunner

from rljob_runtime.cli.main import app
from rljob_runtime.report.display.run_diff import ComparedRun, diff_runs

JOB: dict[str, Any] = {
    "kind": "RLJob",
    "spec": {
        "seed": 1,
        "update": {"optimizer": {"learningRate": 3e-4}},
        "rewards": [{"name": "correct", "type": "dataset"}],
    },
}


@pytest.fixture
def folder(tmp_path, events_of):
    """Folders of runs, made by seed, number of steps and changes of the job."""

    def make(name: str, *, job: dict[str, Any] = JOB, **changes: Any) -> Path:
        made = tmp_path / name
        made.mkdir()
        lines = [json.dumps(event) for event in events_of(**changes)]
        (made / "events.jsonl").write_text("\n".join(lines) + "\n")
        (made / "rljob.yaml").write_text(yaml.safe_dump(job))
        return made

    return make


def compared(*folders: Path) -> dict[str, Any]:
    """What `rljob diff --json` prints."""
    done = CliRunner().invoke(app, ["diff", *map(str, folders), "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_a_run_beside_itself_differs_in_nothing(folder):
    a, b = folder("a", steps=40), folder("b", steps=40)

    diff = compared(a, b)

    assert diff["spec"] == {}
    assert diff["steps"] == 40
    assert {m["firstDifferentStep"] for m in diff["metrics"].values()} == {None}
    assert all(m["a"] == m["b"] for m in diff["metrics"].values())
    assert [e["gain"] for e in diff["evaluations"]] == [0, 0, 0]


def test_fields_that_one_job_lacks_or_says_otherwise_are_named_by_their_paths(folder):
    other = copy.deepcopy(JOB)
    other["spec"]["update"]["optimizer"]["learningRate"] = 1e-3
    other["spec"]["rewards"][0]["threshold"] = 1.0
    del other["spec"]["seed"]

    diff = compared(folder("a", steps=4), folder("b", steps=4, job=other))

    assert diff["spec"] == {
        "spec.seed": {"a": 1, "b": None},
        "spec.update.optimizer.learningRate": {"a": 3e-4, "b": 1e-3},
        "spec.rewards[0].threshold": {"a": None, "b": 1.0},
    }


def test_means_are_over_the_last_steps_that_both_have_done(folder, events_of):
    long, short = (
        folder("long", steps=60, total_steps=60),
        folder("short", steps=20, total_steps=60),
    )

    diff = compared(long, short)

    rewards = [e["metrics"]["reward/mean"] for e in events_of(steps=60) if e["kind"] == "step"]
    assert diff["steps"] == 20
    assert diff["averagedSteps"] == 5
    assert math.isclose(diff["metrics"]["reward/mean"]["a"], sum(rewards[15:20]) / 5, abs_tol=1e-12)


def test_the_first_step_that_differs_is_told(tmp_path, folder):
    a, b = folder("a", steps=12), folder("b", steps=12)
    lines = [json.loads(line) for line in (b / "events.jsonl").read_text().splitlines()]
    for event in lines:
        if event["kind"] == "step" and event["step"] >= 7:
            event["metrics"]["reward/mean"] += 1e-15
            event["metrics"]["loss"] = None
    (b / "events.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")

    diff = compared(a, b)

    parted = {name: m["firstDifferentStep"] for name, m in diff["metrics"].items()}
    assert {name: step for name, step in parted.items() if step} == {"reward/mean": 7, "loss": 7}
    assert diff["metrics"]["loss"]["b"] is None


def test_the_difference_of_accuracies_has_an_interval(folder):
    found = diff_runs(
        ComparedRun.of(folder("a", steps=20)), ComparedRun.of(folder("b", steps=20, seed=8))
    ).accuracies[-1]

    spread = sum(p * (1 - p) / 512 for p in (found.a, found.b))
    assert found.gain == found.b - found.a
    assert math.isclose(found.high - found.gain, 1.96 * math.sqrt(spread), rel_tol=1e-9)
    assert math.isclose(found.gain - found.low, 1.96 * math.sqrt(spread), rel_tol=1e-9)


def test_rewards_over_the_same_prompts_are_paired_from_where_runs_part(folder):
    rng = np.random.default_rng(2)
    base, changed = folder("a", steps=6), folder("b", steps=6)
    of_a = {step: list(rng.random(8)) for step in range(1, 7)}
    of_b = {step: list(rng.random(8)) if step > 2 else values for step, values in of_a.items()}
    tell(base, of_a)
    tell(changed, of_b, others=(5,))

    (found,) = compared(base, changed)["paired"]

    assert found["figure"] == "reward"
    assert [each["step"] for each in found["steps"]] == [3, 4, 6]
    differences = np.concatenate([np.subtract(of_b[s], of_a[s]) for s in (3, 4, 6)])
    half = 2.0687 * np.std(differences, ddof=1) / math.sqrt(24)
    gain = np.mean(differences)
    assert found["gain"] == pytest.approx(gain)
    assert found["interval95"] == pytest.approx([gain - half, gain + half], abs=1e-4)
    assert found["n"] == 24
    several = compared(base, changed, base, changed)["paired"][0]
    assert (several["n"], several["of"]) == (2, "pairs of runs")
    assert several["interval95"] == pytest.approx([gain, gain])


def tell(run: Path, rewards: dict[int, list[float]], others: tuple[int, ...] = ()) -> None:
    """Give a run's steps each prompt's reward; `others` have prompts of their own."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    links = dict.fromkeys(("batch", "rewards", "weights", "chain"), "0")
    for event in events:
        if event["kind"] == "step" and event["step"] in rewards:
            prompts = f"others of {run}" if event["step"] in others else "same"
            event |= {"digest": {"prompts": prompts, **links}}
            event |= {"prompt_rewards": rewards[event["step"]]}
    (run / "events.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")


def test_held_out_accuracies_of_the_same_prompts_are_paired(folder):
    runs = folder("a", steps=20), folder("b", steps=20)
    passed = [0.0, 1.0, 0.5, 1.0], [0.5, 1.0, 1.0, 1.0]
    for run, values in zip(runs, passed, strict=True):
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        for event in events:
            event |= {"prompt_accuracies": values} if event["kind"] == "evaluation" else {}
        (run / "events.jsonl").write_text("\n".join(map(json.dumps, events)) + "\n")

    last = compared(*runs)["evaluations"][-1]

    half = 3.1824 * np.std([0.5, 0, 0.5, 0], ddof=1) / 2
    assert last["paired"]
    assert last["interval95"] == pytest.approx([0.25 - half, 0.25 + half], abs=1e-4)


def test_a_terminal_shows_jobs_metrics_phases_and_accuracies(folder):
    other = copy.deepcopy(JOB) | {"kind": "Other"}

    done = CliRunner().invoke(
        app,
        ["diff", str(folder("a", steps=20)), str(folder("b", steps=20, job=other))],
        env={"COLUMNS": "120"},
    )

    assert done.exit_code == 0
    for text in ("Other", "reward/mean", "generate", "never", "step 20", "points"):
        assert text in done.output


def test_a_page_that_cannot_be_written_is_told(tmp_path, folder):
    runs = [str(folder(name, steps=2)) for name in "ab"]

    done = CliRunner().invoke(app, ["diff", *runs, "--html", str(tmp_path / "no" / "diff.html")])

    assert done.exit_code == 2
    assert "--html: [Errno 2] No such file or directory" in done.stderr


def test_runs_with_nothing_in_common_leave_a_page_that_says_so(tmp_path, folder):
    a, b = folder("a", steps=3), folder("b", steps=0, every=None)
    page = tmp_path / "diff.html"

    done = CliRunner().invoke(app, ["diff", str(a), str(b), "--html", str(page)])

    assert done.exit_code == 0
    assert page_data(page)["charts"] == []


def test_a_folder_without_a_run_is_refused(tmp_path, folder):
    done = CliRunner().invoke(app, ["diff", str(folder("a", steps=2)), str(tmp_path / "none")])

    assert done.exit_code == 2
    assert "none holds no events.jsonl; name the folder of a run" in done.output


def test_a_job_that_is_no_yaml_is_refused_by_name(folder):
    damaged = folder("b", steps=2)
    (damaged / "rljob.yaml").write_text("spec: [unclosed")

    done = CliRunner().invoke(app, ["diff", str(folder("a", steps=2)), str(damaged)])

    assert done.exit_code == 2
    assert f"{damaged / 'rljob.yaml'} is no YAML" in done.output.replace("\n", "")
