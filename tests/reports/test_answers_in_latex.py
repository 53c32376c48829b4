"""With `math-verify` and answers as MATH has them, a run paid `\\boxed{2}` where the answer was `2\\sqrt{3}`,
and nothing for the right one."""

import json
from pathlib import Path

import pytest
import yaml
from whole_runs import SMALL_JOB, run

from rljob_api.spec.workload import Data, JsonlData, Reward
from rljob_runtime.task.data.question import Question
from rljob_runtime.task.rewards.answer_problems import answer_problems
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.task.rewards.scorers import make_scorer

DATA = Data(jsonl=JsonlData(path="rows.jsonl"))
ANSWERS = [
    r"\frac{1}{2}", r"$\frac{1}{2}$", r"2\sqrt{3}", "3x", "x^2+1", "(1,2)",
    r"\left( 3, \frac{\pi}{2} \right)", r"90^\circ", "A", r"\text{Evelyn}", "Evelyn", "18", "1,000", "p - q",
    r"\pi", "[-2,7]", "#### 18", "0.5", r"50\%", r"(-\infty, 2]", "x=5", r"\text{(B)}", r"4^{3}", r"\$32",
    r"1\frac{1}{2}", "3, 5", r"\{1,2\}", r"\begin{pmatrix}1\\2\end{pmatrix}", "no solution",
]  # fmt: skip


def score(answer: str, response: str) -> float:
    scorer = make_scorer(Reward(name="m", type="math-verify"), DATA, Path())
    return scorer(RewardRequest(prompt="", response=response, answer=answer, entry={}))


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_in_a_box_is_right(answer: str) -> None:
    assert score(answer, rf"So it is \boxed{{{answer.strip('$')}}}.") == 1.0


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_as_it_stands_in_the_data_is_right(answer: str) -> None:
    assert score(answer, answer) == 1.0


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        (r"2\sqrt{3}", r"\boxed{2}"),
        ("3x", r"\boxed{3}"),
        (r"(-\infty, 2]", r"\boxed{2}"),
        (r"1\frac{1}{2}", r"\boxed{\frac{1}{2}}"),
        (r"4^{3}", r"\boxed{4}"),
        ("x^2+1", r"\boxed{x^2-1}"),
        ("(1,2)", r"\boxed{(2,1)}"),
        (r"\text{Evelyn}", r"\boxed{\text{Eve}}"),
        ("Paris", r"\boxed{Pairs}"),
        ("3, 5", r"\boxed{5}"),
    ],
)
def test_a_part_of_an_answer_is_wrong(answer: str, response: str) -> None:
    assert score(answer, response) == 0.0


@pytest.mark.parametrize(
    ("answer", "response"),
    [
        (r"\frac{1}{2}", r"\boxed{0.5}"),
        ("The answer is 7", r"\boxed{7}"),
        ("12 apples", "12"),
        (r"\text{Paris}", r"\boxed{Paris}"),
        ("#### 1,234", "1234"),
        (r"2\sqrt{3}", r"$\sqrt{12}$"),
    ],
)
def test_equal_answers_are_right_however_they_are_written(answer: str, response: str) -> None:
    assert score(answer, response) == 1.0


@pytest.mark.parametrize("answer", ["", "$$"])
def test_an_answer_without_mathematics_is_an_error_and_not_a_wrong_response(answer: str) -> None:
    with pytest.raises(ValueError, match="has no mathematics in it; write a number"):
        score(answer, r"\boxed{3}")


def test_answers_of_all_these_forms_are_no_problem_of_the_data() -> None:
    questions = [Question(fields={}, answer=answer, entry={}) for answer in ANSWERS]

    rewards = [Reward(name="m", type="math-verify")]

    assert answer_problems(rewards, DATA, questions, base_dir=Path()) == []


def test_a_run_whose_data_have_an_answer_without_mathematics_does_not_start(tmp_path: Path) -> None:
    rows = [{"prompt": "1+1", "answer": "2"}, {"prompt": "Why?", "answer": "$$"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        **SMALL_JOB["spec"],
        "data": {"jsonl": {"path": "rows.jsonl"}, "template": "{question}="},
        "rewards": [{"name": "correct", "type": "math-verify"}],
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({**SMALL_JOB, "spec": spec}))

    refused = run(tmp_path / "job.yaml", tmp_path / "run")

    assert refused.code == 2
    assert "spec.rewards[0]: cannot score the answer '$$' of the data" in refused.output
    assert not (tmp_path / "run").exists()
