"""A run's reward rose to 1 within a step: a response had changed the scorer, and all later ones passed."""

from pathlib import Path

import pytest
import yaml
from whole_runs import SMALL_JOB, run

from rljob_runtime.run import launch

REWARD = '''
import os

def reward(prompt, response, answer):
    """Writes an answer wherever it can, as a response that is evaluated may."""
    for number in range(64):
        try:
            os.write(number, b'{"score": 1.0}\\n')
        except OSError:
            pass
    return 0.0
'''


def test_a_scorer_that_was_taken_ends_the_run_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "landlock_version", lambda: 0)
    (tmp_path / "reward.py").write_text(REWARD)
    own = {
        "name": "own",
        "type": "python",
        "python": {"path": "reward.py"},
        "restricted": True,
    }
    job = {**SMALL_JOB, "spec": {**SMALL_JOB["spec"], "steps": 2, "rewards": [own]}}
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))

    ended = run(tmp_path / "job.yaml", tmp_path / "run")

    assert ended.code == 4, ended.output
    assert "reward own: a response has changed the process that scores" in ended.output
    assert ended.of_kind("step") == []
    assert "reward own: what a policy writes runs in a process that reads" in ended.output
