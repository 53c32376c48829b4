"""Benchmarks that are cut short and go on."""

import json
from pathlib import Path

import pytest

from benchmarks.support.beside import runs_beside

WANTED = [{"rate": 0.1, "seed": 0}, {"rate": 0.1, "seed": 1}, {"rate": 0.1, "seed": 2}]


def test_runs_that_the_file_has_are_not_made_again_and_others_stay(tmp_path) -> None:
    file = tmp_path / "runs.json"
    there = [{"rate": 0.2, "seed": 0, "after": 0.7}, WANTED[1] | {"after": 0.5}]
    file.write_text(json.dumps({"runs": there}))

    document = runs_beside(WANTED, lambda settings, _: {"after": 0.6}, file=file, at_once=2)

    found = [(run["rate"], run["seed"], run["after"]) for run in document["runs"]]
    assert found == [(0.2, 0, 0.7), (0.1, 0, 0.6), (0.1, 1, 0.5), (0.1, 2, 0.6)]
    assert json.loads(file.read_text())["runs"] == document["runs"]


def test_what_fails_is_told_once_the_others_are_kept(tmp_path) -> None:
    file = tmp_path / "runs.json"

    def learn(settings: object, folder: Path) -> dict[str, float]:
        assert settings != WANTED[0], "no more memory"
        return {"after": 0.6}

    with pytest.raises(SystemExit, match="seed 0: no more memory"):
        runs_beside(WANTED, learn, file=file, at_once=1)

    assert [run["seed"] for run in json.loads(file.read_text())["runs"]] == [1, 2]
