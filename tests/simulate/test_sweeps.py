"""One job with many values of a field, and several jobs: a row each."""

from pathlib import Path
from typing import Any

import pytest

from rljob_api.check.load import load_job
from rljob_api.spec.problems import InvalidJob
from rljob_runtime.simulate.several import SimulationSettings
from rljob_runtime.simulate.sweep import changes_of, compare_jobs, sweep_job, sweep_text

EXAMPLES = Path(__file__).parents[2] / "examples"
BRIEF = SimulationSettings(seeds=1, steps=2, lengths="fixed:8", price=2.0)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("accelerator.nodes=2,4", [{"accelerator.nodes": 2}, {"accelerator.nodes": 4}]),
        ("spec.flow.mode=async", [{"flow.mode": "async"}]),
        ("a.b+c=1+null,2+x", [{"a.b": 1, "c": None}, {"a.b": 2, "c": "x"}]),
        ("update.optimizer.learningRate=1e-4", [{"update.optimizer.learningRate": 1e-4}]),
    ],
)
def test_values_of_a_field_are_changes(text: str, changes: list[dict[str, Any]]) -> None:
    assert changes_of(text) == changes


@pytest.mark.parametrize("text", ["accelerator.nodes", "=1", "steps=", "steps=1,,2", "a+b=1,2"])
def test_what_names_no_values_is_refused(text: str) -> None:
    with pytest.raises(InvalidJob, match=r"--sweep: .*write"):
        changes_of(text)


def test_a_sweep_has_a_row_for_each_value_and_says_what_is_refused() -> None:
    job = load_job(EXAMPLES / "quickstart.yaml")

    found = sweep_job(
        job,
        ["accelerator.devicesPerNode+batch.globalBatchSize=2+32,4+64,3+32"],
        base_dir=EXAMPLES,
        settings=BRIEF,
    )

    two, four, three = found.rows
    assert two.name == "accelerator.devicesPerNode=2 batch.globalBatchSize=32"
    assert two.answers is not None and two.answers.devices == 2
    assert four.answers is not None and four.answers.devices == 4
    assert found.linearity(two) == 1.0
    linearity = found.linearity(four)
    assert linearity == pytest.approx(
        (4 * four.answers.tokens_per_second.mean)
        / (2 * two.answers.tokens_per_second.mean)
        / (4 / 2)
    )
    assert three.answers is None
    assert "cannot be shared evenly by 3 rollout replicas" in three.reasons[0]
    assert "refused: spec.batch.globalBatchSize" in sweep_text(found)
    assert [set(row) for row in found.json()["rows"]] == [
        {"name", "linearity", "idle", "answers"},
        {"name", "linearity", "idle", "answers"},
        {"name", "refused"},
    ]


def test_jobs_stand_beside_each_other() -> None:
    files = [EXAMPLES / "quickstart.yaml", EXAMPLES / "separated.yaml"]

    found = compare_jobs(files, settings=BRIEF)

    assert [row.name for row in found.rows] == [str(file) for file in files]
    assert all(row.answers for row in found.rows)


def test_too_many_combinations_are_refused() -> None:
    job = load_job(EXAMPLES / "quickstart.yaml")
    eleven = ",".join(map(str, range(1, 12)))

    with pytest.raises(InvalidJob, match="asks for 121 combinations; ask for 100 at most"):
        sweep_job(job, [f"steps={eleven}", f"seed={eleven}"], base_dir=EXAMPLES, settings=BRIEF)
