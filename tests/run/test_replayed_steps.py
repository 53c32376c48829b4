"""A step that is computed again is proven, one that was told otherwise refuted; a fork has the same prompts
and noise."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner
from whole_runs import run

from rljob_api.spec.exit_codes import ExitCode
from rljob_runtime.cli.main import app
from rljob_runtime.run.branches import BranchSource, verdict

pytestmark = [pytest.mark.run]

LETTERS = "def reward(prompt, response, answer):\n    return len(set(response)) / 8\n"


def asked(*words: object) -> tuple[int, str]:
    """What `rljob` said, and how it ended."""
    done = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "200"})
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_a_run_is_replayed_and_forked(
    job_file: Callable[..., Path], untrained_model: Path, tmp_path: Path
) -> None:
    job = job_file(
        steps=3,
        model={"path": untrained_model.name},
        rewards=[{"name": "letters", "type": "python", "python": {"path": "letters.py"}}],
        batch__globalBatchSize=6,
        checkpoint={"every": 1, "keep": 2},
        accelerator={"type": "emulated", "devicesPerNode": 1},
    )
    (tmp_path / "letters.py").write_text(LETTERS)
    whole, fork = tmp_path / "whole", tmp_path / "fork"
    made = run(job, whole)
    assert made.code == 0, made.output
    shutil.rmtree(whole / "checkpoints" / "step-000003")

    none_before = asked("replay", whole, "--step", 2, "--local")
    proven = asked("replay", whole, "--step", 3, "--local")
    forked = asked(
        "fork", whole, "--step", 2, "--set", "update.optimizer.learningRate=1e-2", "--set", "steps=4",
        "--output", fork, "--local",
    )  # fmt: skip
    compared = asked("diff", whole, fork, "--json")

    assert none_before[0] == ExitCode.INVALID
    assert "no checkpoint before step 2; it has those of steps 2" in none_before[1]
    assert proven[0] == ExitCode.DONE, proven[1]
    assert "step 3 of" in proven[1]
    assert "proven from step 2 on" in proven[1]
    assert forked[0] == ExitCode.DONE, forked[1]
    own, other = BranchSource.of(whole).steps(), BranchSource.of(fork).steps()
    assert own[2].digest == other[2].digest
    a, b = own[3].digest, other[3].digest
    assert a is not None and b is not None
    assert (a.prompts, a.batch, a.rewards) == (b.prompts, b.batch, b.rewards)
    assert a.weights != b.weights
    assert other[4].prompt_rewards is not None
    _is_refuted_where_changed(whole, tmp_path / "whole-replay-3")
    assert json.loads(compared[1])["paired"] == []


def _is_refuted_where_changed(whole: Path, replayed: Path) -> None:
    """What a changed log is found out by."""
    told, found = BranchSource.of(whole).steps(), {3: BranchSource.of(replayed).steps()[3]}
    digest, metrics = told[3].digest, told[3].metrics
    assert digest is not None
    seed = replace(told[3], digest=replace(digest, batch="0" * 32, weights="0" * 16))
    higher = replace(told[3], metrics=metrics | {"reward/mean": 1.0})
    earlier = replace(told[2], digest=replace(told[2].digest, rewards="0" * 32))

    assert verdict(told, found, 3).refuted == ""
    assert verdict(told | {3: seed}, found, 3).refuted.startswith("batch differ first, told 0000")
    assert "tells reward/mean 1.0" in verdict(told | {3: higher}, found, 3).refuted
    assert "chain breaks at step 2" in verdict(told | {2: earlier}, found, 3).refuted
