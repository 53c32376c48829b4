"""Held-out sets by name: which prompts they have, what is told of them, and what a wrong one is told."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from run_events import history_of
from whole_runs import SMALL_JOB

from rljob_api.check.load import read_job
from rljob_api.spec.evaluation import Evaluation
from rljob_api.spec.problems import InvalidJob
from rljob_api.spec.rljob import RLJob
from rljob_api.spec.workload import Data, ReasoningGymData, Reward
from rljob_runtime.processes.actors.reward_worker import RewardReport
from rljob_runtime.record.events import plain
from rljob_runtime.record.metrics import EvaluationResult, evaluation_metrics
from rljob_runtime.report.display.wording import suite_rows, summary_rows
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.task.data.data_problems import checked_suites, data_problems
from rljob_runtime.task.data.gym import GymItems, params_of
from rljob_runtime.task.data.source import PromptSource, suites_of
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.task.rewards.scorers import make_scorer
from rljob_runtime.task.tokenizer import ByteTokenizer

WORDS = {"dataset": "spell_backward", "params": {"min_word_len": 3, "max_word_len": 4}}
LEVELS: dict[str, Any] = {
    "name": "longer",
    "reasoningGym": {"dataset": "spell_backward"},
    "levels": [1, 2],
    "prompts": 8,
    "samplesPerPrompt": 4,
    "temperature": 0.5,
}


def job_with(*suites: dict[str, Any], **spec: Any) -> RLJob:
    evaluation = {"prompts": 16, "every": 2, "suites": list(suites)}
    return read_job({**SMALL_JOB, "spec": {**SMALL_JOB["spec"], "evaluation": evaluation, **spec}})


def source_of(job: RLJob, base_dir: Path = Path()) -> PromptSource:
    evaluation = job.spec.evaluation
    assert evaluation is not None
    return PromptSource(
        job.spec.data,
        batch=job.spec.batch,
        tokenizer=ByteTokenizer(),
        seed=job.spec.seed,
        base_dir=base_dir,
        held_out=evaluation.prompts,
        suites=suites_of(evaluation),
    )


def test_an_evaluation_has_its_own_set_and_each_level_of_each_suite() -> None:
    jsonl = {"name": "file", "jsonl": {"path": "a.jsonl"}, "prompts": 5}
    evaluation = Evaluation.model_validate({"prompts": 16, "suites": [LEVELS, jsonl]})

    found = [(s.name, s.prompts, s.samples_per_prompt, s.temperature) for s in evaluation.sets()]

    assert found == [
        ("", 16, 1, 1.0),
        ("longer/level-1", 8, 4, 0.5),
        ("longer/level-2", 8, 4, 0.5),
        ("file", 5, 1, 1.0),
    ]


def test_prompts_of_suites_are_different_and_training_has_none_of_them() -> None:
    job = job_with(LEVELS, {"name": "same", "reasoningGym": WORDS, "prompts": 32})
    source = source_of(job)

    sets = {name: [p.text for p in source.heldout(name)] for name in ("", "longer/level-1", "same")}

    assert {name: len(texts) for name, texts in sets.items()} == {
        "": 16,
        "longer/level-1": 8,
        "same": 32,
    }
    held_out = [text for texts in sets.values() for text in texts]
    assert len(set(held_out)) == len(held_out)
    trained = {p.text for step in range(1, 40) for p in source.train(step)}
    assert trained.isdisjoint(held_out)
    assert [p.text for p in source_of(job).heldout("same")] == sets["same"]  # of the seed alone


def test_each_level_of_a_suite_is_as_difficult_as_the_curriculum_says() -> None:
    source = source_of(job_with(LEVELS))

    lengths = {
        level: {len(p.answer) for p in source.heldout(f"longer/level-{level}")} for level in (1, 2)
    }

    assert lengths == {1: {5}, 2: {7}}


def test_a_file_as_a_suite_is_taken_whole_and_left_out_of_training(tmp_path: Path) -> None:
    lines = [{"prompt": f"question {i}", "answer": str(i)} for i in range(40)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "test.jsonl").write_text("\n".join(map(json.dumps, lines[30:] + lines[30:])))
    job = job_with(
        {"name": "file", "jsonl": {"path": "test.jsonl"}},
        data={"jsonl": {"path": "train.jsonl"}, "template": "{question}"},
        rewards=[{"name": "exact", "type": "exact"}],
    )

    source = source_of(job, tmp_path)

    of_file = {p.text for p in source.heldout("file")}
    own = {p.text for p in source.heldout()}
    assert of_file == {f"question {i}" for i in range(30, 40)} - own
    trained = {p.text for step in range(1, 20) for p in source.train(step)}
    assert trained == {f"question {i}" for i in range(40)} - own - of_file


def test_a_small_generator_leaves_prompts_to_train_on() -> None:
    sums = {"dataset": "chain_sum", "params": {"min_terms": 2, "max_terms": 2, "max_digits": 1}}
    job = job_with(
        {"name": "sums", "reasoningGym": sums, "prompts": 100},
        data={"reasoningGym": sums, "template": "{question}"},
        batch={**SMALL_JOB["spec"]["batch"], "maxPromptLength": 100},
    )
    source = source_of(job)

    assert 0 < len(source.heldout("sums")) <= 50  # of some 180 that there are
    assert source.train(1)


def test_the_datasets_own_scorer_scores_each_suite_by_its_own_dataset() -> None:
    data = Data.model_validate({"reasoningGym": WORDS})
    score = make_scorer(Reward(name="right", type="dataset"), data, Path())
    for dataset in ("spell_backward", "chain_sum", "letter_counting"):
        question = GymItems(ReasoningGymData(dataset=dataset), seed=3)[0]
        answers = {question.answer: 1.0, "nonsense": 0.0}

        scores = {
            text: score(RewardRequest(prompt="", response=text, answer="", entry=question.entry))
            for text in answers
        }

        assert scores[question.answer] == 1.0
        assert scores["nonsense"] < 0.5


def test_a_level_sets_parameters_and_the_jobs_own_go_before() -> None:
    level = ReasoningGymData(dataset="spell_backward", level=3)
    own = ReasoningGymData(dataset="spell_backward", level=3, params={"max_word_len": 12})
    highest = ReasoningGymData(dataset="spell_backward", level=99)

    assert params_of(level) == {"min_word_len": 9, "max_word_len": 9}
    assert params_of(own) == {"min_word_len": 9, "max_word_len": 12}
    assert params_of(highest)["max_word_len"] == 11
    assert params_of(ReasoningGymData(dataset="spell_backward")) == {}


def test_a_dataset_without_a_curriculum_has_no_level() -> None:
    from rljob_runtime.task.data.gym import import_factory

    factory = import_factory()
    without = next(name for name in sorted(factory.DATASETS) if not factory.has_curriculum(name))
    plan = {"levels": [0, 1], "stepsPerLevel": 3}
    for field, value in (("level", 1), ("curriculum", plan)):
        data = Data.model_validate({"reasoningGym": {"dataset": without, field: value}})

        (problem,) = data_problems(data, base_dir=Path())

        assert problem.path == f"spec.data.reasoningGym.{field}"
        assert f"the dataset {without!r} has no curriculum" in problem.message


def test_faults_of_suites_are_told_with_their_path(tmp_path: Path) -> None:
    job = job_with(
        {"name": "typo", "reasoningGym": {"dataset": "spell_backwards"}},
        {"name": "sums", "reasoningGym": {"dataset": "chain_sum"}},
    )

    found = [str(problem) for problem in checked_suites(job.spec, base_dir=tmp_path)[0]]

    assert found[0].startswith(
        "spec.evaluation.suites[0].reasoningGym.dataset: is 'spell_backwards'"
    )
    assert found[1].startswith("spec.data.template: names {word}, which not every item has")
    assert found[1].endswith("(in spec.evaluation.suites[1])")


def test_batches_of_sets_have_names_of_their_own() -> None:
    assert str(BatchName(kind="eval", step=4, suite="longer/level-2")) == "eval:longer/level-2/4"
    assert str(BatchName(kind="eval", step=4)) == "eval/4"


def report(passes: list[list[float]]) -> RewardReport:
    """Of prompts' samples."""
    flat = [(number, value) for number, row in enumerate(passes) for value in row]
    return RewardReport(
        totals=[value for _, value in flat],
        passes=[value for _, value in flat],
        prompts=[number for number, _ in flat],
    )


def test_avg_at_k_and_pass_at_k_are_of_prompts_with_k_samples() -> None:
    found = evaluation_metrics([report([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]])], step=2)

    assert (found.k, found.prompts, found.samples) == (4, 3, 12)
    assert found.accuracy == pytest.approx(4 / 12)
    assert found.pass_at_k == pytest.approx(2 / 3)
    means = [0.25, 0.0, 0.75]
    variance = sum((m - 1 / 3) ** 2 for m in means) / 2
    assert found.stderr == pytest.approx(math.sqrt(variance / 3))


def evaluated(step: int, own: float, levels: list[float]) -> EvaluationResult:
    def of(name: str, value: float, prompts: int) -> EvaluationResult:
        return EvaluationResult(
            step=step,
            name=name,
            accuracy=value,
            stderr=0.1,
            reward=-value,
            prompts=prompts,
            samples=2 * prompts,
            pass_at_k=value,
            shown=[],
            suites=(),
        )

    suites = tuple(of(f"longer/level-{n}", v, 10 * n) for n, v in enumerate(levels, 1))
    found = of("", own, 50)
    return EvaluationResult(
        **{f: getattr(found, f) for f in found.__slots__ if f != "suites"}, suites=suites
    )


def test_a_metric_of_a_suite_is_its_mean_over_all_prompts_of_its_levels() -> None:
    found = evaluated(2, 0.5, [0.6, 0.3])

    assert found.value("accuracy") == 0.5
    assert found.value("reward") == -0.5
    assert found.value("longer/accuracy") == pytest.approx((10 * 0.6 + 20 * 0.3) / 30)
    assert found.value("longer/reward") == pytest.approx(-(10 * 0.6 + 20 * 0.3) / 30)


def test_the_report_and_the_summary_show_each_set_before_and_after() -> None:
    history = history_of(
        plain(evaluated(step, own, levels).event(seconds=1.0)) | {"time": 1.0}
        for step, own, levels in ((0, 0.1, [0.2, 0.1]), (4, 0.5, [0.6, 0.3]))
    )

    first, second = suite_rows(history)

    assert (first["name"], first["measure"], first["prompts"]) == ("longer/level-1", "Avg@2", "10")
    assert first["first"].startswith("20.0 %") and first["last"].startswith("60.0 %")
    assert first["gain"].startswith("+40.0 (")
    assert second["passAtK"] == "Pass@2 30.0 %"
    labels = [label for label, _ in summary_rows(history)]
    assert "longer/level-2, Avg@2" in labels


@pytest.mark.parametrize(
    ("suites", "path", "message"),
    [
        (
            [{"name": "a"}],
            "spec.evaluation.suites[0]",
            "give exactly one of reasoningGym, drawn, jsonl",
        ),
        ([LEVELS, LEVELS], "spec.evaluation.suites[1].name", "taken by an earlier suite"),
        (
            [{"name": "a", "jsonl": {"path": "b"}}],
            "spec.evaluation.suites[0]",
            "has no scorer for rewards of type dataset",
        ),
        (
            [{"name": "a", "jsonl": {"path": "b"}, "levels": [1]}],
            "spec.evaluation.suites[0].levels",
            "are those of a reasoning-gym curriculum",
        ),
    ],
)
def test_a_wrong_suite_is_refused(suites: list[dict[str, Any]], path: str, message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        job_with(*suites)

    assert any(p.path == path and message in p.message for p in caught.value.problems)
