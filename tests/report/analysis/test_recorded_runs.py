"""Runs that `benchmarks.run.analyze --record` recorded: the same advice comes first, and is kept."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.run.analyze import first_advice
from rljob_runtime.report.analysis.run import analyze_run

RECORDED = sorted((Path(__file__).parents[2] / "fixtures" / "analyzed_runs").iterdir())
KNOWN_OFF: Mapping[str, str] = {
    "inference": "four emulated devices computed on two processors; it is promised that each has its own"
}
"""Run → why its promise is not what was measured."""


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_a_recorded_run_is_told_first_what_it_was_told_when_it_ran(folder):
    measured = json.loads((folder / "measured.json").read_text())

    advice = first_advice(analyze_run(folder))

    assert advice.change == measured["advice"]
    assert (advice.seconds is None) == (measured["promised"] is None)


@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_a_recorded_run_gained_what_it_is_promised(folder):
    measured, found = json.loads((folder / "measured.json").read_text()), analyze_run(folder)

    seconds = first_advice(found).seconds

    if seconds is None or folder.name in KNOWN_OFF:
        pytest.skip(KNOWN_OFF.get(folder.name, "its advice has no promise"))
    assert found.seconds / seconds == pytest.approx(measured["measured"], rel=0.15)
