"""Training prompts that become more difficult by steps, and what the model's path may name."""

import json
from pathlib import Path
from typing import Any

import pytest
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.model.architecture import find_shape
from rljob_api.model.model_places import model_folder
from rljob_api.spec.problems import InvalidJob
from rljob_api.spec.rljob import RLJob
from rljob_api.spec.workload import Model
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.builtin import policy_path
from rljob_runtime.task.data.source import PromptSource
from rljob_runtime.task.tokenizer import ByteTokenizer

PLAN = {"levels": [0, 1, 3], "stepsPerLevel": 2}


def job_with(gym: dict[str, Any], **spec: Any) -> RLJob:
    data = {"template": "{word}=", "reasoningGym": {"dataset": "spell_backward", **gym}}
    return read_job({**SMALL_JOB, "spec": {**SMALL_JOB["spec"], "data": data, **spec}})


def source_of(job: RLJob) -> PromptSource:
    spec = job.spec
    return PromptSource(
        spec.data,
        batch=spec.batch,
        tokenizer=ByteTokenizer(),
        seed=spec.seed,
        base_dir=Path(),
        held_out=8,
    )


def test_each_level_has_its_steps_and_the_last_one_stays() -> None:
    source = source_of(job_with({"curriculum": PLAN}, steps=8))

    lengths = [{len(p.answer) for p in source.train(step)} for step in range(1, 9)]

    assert lengths == [{3}, {3}, {5}, {5}, {9}, {9}, {9}, {9}]
    assert {len(p.answer) for p in source.heldout()} == {9}


def test_prompts_by_their_positions_are_those_of_their_steps() -> None:
    source = source_of(job_with({"curriculum": PLAN}, steps=8))

    assert source.train_at(range(16, 24)) == source.train(3)


def test_without_a_curriculum_every_step_is_alike() -> None:
    level = source_of(job_with({"level": 1}))

    assert {len(p.answer) for step in range(1, 9) for p in level.train(step)} == {5}


@pytest.mark.parametrize(
    ("gym", "path", "message"),
    [
        ({"curriculum": PLAN, "level": 1}, "level", "curriculum says the levels already"),
        (
            {"curriculum": {**PLAN, "stepsPerLevel": 3}},
            "curriculum.stepsPerLevel",
            "the last of 3 levels begins after step 6, but spec.steps is 6",
        ),
    ],
)
def test_a_wrong_curriculum_is_refused(gym: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        job_with(gym)

    (problem,) = caught.value.problems
    assert problem.path == f"spec.data.reasoningGym.{path}"
    assert message in problem.message


CONFIG = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2,
    "intermediate_size": 64, "num_attention_heads": 4,
}  # fmt: skip


def save(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_a_warm_start_takes_a_runs_newest_checkpoint_or_the_one_that_is_named(
    tmp_path: Path,
) -> None:
    run = tmp_path / "runs" / "before"
    older = save(run / "checkpoints" / "step-000020" / "model")
    newest = save(run / "checkpoints" / "step-000100" / "model")
    save(run / "checkpoints" / ".draft-step-000200" / "model")

    found = {
        path: policy_path(
            read_job({**SMALL_JOB, "spec": {**SMALL_JOB["spec"], "model": {"path": path}}}),
            base_dir=tmp_path,
            cache_dir=tmp_path,
            progress=print,
        )
        for path in ("runs/before", "runs/before/checkpoints/step-000020")
    }

    assert found == {
        "runs/before": newest.resolve(),
        "runs/before/checkpoints/step-000020": older.resolve(),
    }
    shape = find_shape(Model(path="runs/before"), base_dir=tmp_path)
    assert shape is not None
    assert shape.layers == 2


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    job = read_job({**SMALL_JOB, "spec": {**SMALL_JOB["spec"], "model": {"path": "run"}}})

    assert model_folder(tmp_path / "run") is None
    with pytest.raises(ConfigError, match=r"holds no config\.json .* that has saved a checkpoint"):
        policy_path(job, base_dir=tmp_path, cache_dir=tmp_path, progress=print)
