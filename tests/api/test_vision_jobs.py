"""Jobs on rows with pictures: what is refused, by name and with a remedy."""

from dataclasses import replace

import pytest
from small_shapes import DENSE

from rljob_api.check.shape_rules import shape_problems

SHOWN = {
    "spec.model": {"path": "model", "vision": "frozen"},
    "spec.data": {"jsonl": {"path": "rows.jsonl"}},
    "spec.rewards": [{"name": "right", "type": "exact"}],
}


def test_a_job_on_rows_with_pictures_is_valid(job):
    found = job(SHOWN | {"spec.data.images": {"field": "shown", "maxPixels": 50176}})

    assert found.spec.data.shown.field == "shown"
    assert job(SHOWN).spec.data.shown.field == "images"


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_a_job_that_trains_the_tower_is_valid(job, engine):
    found = job(SHOWN | {"spec.model.vision": "trained", "spec.rollout.engine": engine})

    assert found.spec.model.vision == "trained"


def test_a_job_of_text_says_nothing_of_pictures(job):
    said = job().model_dump_json(by_alias=True)

    assert "vision" not in said
    assert "images" not in said


@pytest.mark.parametrize(
    ("changes", "path", "fragment"),
    [
        (
            {"spec.model.vision": "trained", "spec.update.lora": {}},
            "spec.update.lora",
            "adapters of the language part alone",
        ),
        (
            {"spec.model.vision": "trained", "spec.update.parallelism.zero": 3},
            "spec.update.parallelism.zero",
            "is 3, and rows of a vision tower are not shared",
        ),
        (
            {"spec.model.vision": "trained", "spec.resharding.strategy": "stream"},
            "spec.resharding.strategy",
            "goes to the rollout by a plan; use allgather",
        ),
        (
            {"spec.model.vision": "trained", "spec.rollout.quantization": "int8"},
            "spec.rollout.quantization",
            "goes to the rollout as it is",
        ),
        (
            {"spec.model": {"builtin": "tiny", "vision": "frozen"}},
            "spec.model.vision",
            "builtin tiny",
        ),
        (
            {"spec.data": {"reasoningGym": {"dataset": "x"}}},
            "spec.data.reasoningGym",
            "use drawn, jsonl",
        ),
        (
            {"spec.rollout.engine": "mine.engine"},
            "spec.rollout.engine",
            "is mine.engine, which is shown no pictures yet; use torch or vllm",
        ),
        (
            {"spec.update.engine": "megatron"},
            "spec.update.engine",
            "is megatron, which is shown no",
        ),
        (
            {"spec.rewards": [{"name": "m", "type": "model", "model": {"path": "scorer"}}]},
            "spec.rewards[0].model",
            "is shown no pictures yet",
        ),
        (
            {"spec.data.images": {"minPixels": 200, "maxPixels": 100}},
            "spec.data.images.minPixels",
            "is 200, more than maxPixels 100",
        ),
    ],
)
def test_what_goes_without_pictures_so_far_is_refused(problems, changes, path, fragment):
    found = problems(SHOWN | changes)

    assert [p.path for p in found if fragment in p.message] == [path]


def test_images_are_for_models_that_are_shown_them(problems):
    (problem,) = problems({"spec.data.images": {"field": "shown"}})

    assert str(problem).startswith("spec.data.images: is for models that are shown pictures; set")


def test_a_model_without_a_tower_is_refused_once_its_shape_is_known(job):
    spec = job(SHOWN).spec

    (problem,) = shape_problems(spec, DENSE)

    assert problem.path == "spec.model.vision"
    assert "is frozen, but the model (llama) has no vision tower" in problem.message
    assert shape_problems(spec, replace(DENSE, tower=1000)) == []


@pytest.mark.parametrize(("role", "algorithm"), [("teacher", "distillation"), ("critic", "ppo")])
def test_models_beside_the_policy_see_pictures_as_it_does(job, role, algorithm):
    given = {"spec.algorithm": {"name": algorithm}, f"spec.{role}": {"path": "other"}}
    spec, shape = job(SHOWN | given).spec, replace(DENSE, tower=1000, token_side=28)

    (blind,) = shape_problems(spec, shape, {role: DENSE})
    (other,) = shape_problems(spec, shape, {role: replace(shape, token_side=32)})

    assert str(blind).startswith(f"spec.{role}.path: has no vision tower (llama), and rows show")
    assert "sees tokens of 32 × 32 pixels, and the policy of 28 × 28; name a model" in other.message
    assert shape_problems(spec, shape, {role: replace(shape, layers=4)}) == []
