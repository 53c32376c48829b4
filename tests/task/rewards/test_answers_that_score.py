"""Answers of the data that a reward cannot score are told before anything starts."""

from pathlib import Path

import pytest

from rljob_api.spec.workload import Data, PatternReward, ReasoningGymData, Reward
from rljob_runtime.task.data.question import Question
from rljob_runtime.task.rewards.answer_problems import SHOWN_ANSWERS, answer_problems

DATA = Data(reasoning_gym=ReasoningGymData(dataset="basic_arithmetic"))


def told(reward: Reward, *answers: str) -> list[str]:
    questions = [Question(fields={}, answer=answer, entry={}) for answer in answers]
    return [str(p) for p in answer_problems([reward], DATA, questions, base_dir=Path())]


def test_answers_without_mathematics_are_told_and_only_some_of_many_are_shown() -> None:
    many = ["", "$$", "$ $", r"\boxed{}", r"\text{}", r"\(\)", "}"]

    found = told(Reward(name="m", type="math-verify"), "12", *many, many[0])

    assert len(found) == SHOWN_ANSWERS + 1
    assert found[0].startswith(
        "spec.rewards[0]: cannot score the answer '' of the data: reward m: "
    )
    assert "has no mathematics in it; write a number" in found[0]
    assert found[-1] == "spec.rewards[0]: 2 other answers cannot be scored either"


def test_an_answer_that_does_not_score_1_against_itself_is_told() -> None:
    (flat,) = told(Reward(name="b", type="boxes"), "[3, 3, 3, 9]", "[0, 0, 4, 4]", "[]")

    assert "the answer '[3, 3, 3, 9]' of the data scores 0 where a response gives it" in flat


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_an_answer_to_count_is_a_number_whatever_the_pattern_and_the_threshold(
    threshold: float | None,
) -> None:
    pattern = PatternReward(pattern=r"#### (\d+)", group=1)
    reward = Reward(name="c", type="count", pattern=pattern, threshold=threshold)

    (seven,) = told(reward, "3", "seven")

    assert "the answer 'seven' is no number" in seven


def test_what_a_pattern_or_a_text_is_compared_with_is_not_judged() -> None:
    assert told(Reward(name="e", type="exact"), "?") == []
