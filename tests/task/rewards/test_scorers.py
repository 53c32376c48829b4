"""What each type of reward gives for which response."""

import re
from pathlib import Path

import pytest
import reasoning_gym

from rljob_api.spec.workload import Data, PatternReward, PythonReward, ReasoningGymData, Reward
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.task.rewards.reward_problems import reward_problems
from rljob_runtime.task.rewards.scorers import make_scorer

DATA = Data(reasoning_gym=ReasoningGymData(dataset="basic_arithmetic"))


def _score(reward: Reward, response: str, answer: str) -> float:
    request = RewardRequest(prompt="", response=response, answer=answer, entry={"answer": answer})
    return make_scorer(reward, DATA, Path())(request)


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        (r"\frac{1}{2}", "0.5", 1.0),
        (r"the result is \boxed{12}", "12", 1.0),
        ("1,234", "1234", 1.0),
        (r"$2\sqrt{3}$", r"$\sqrt{12}$", 1.0),
        ("13", "12", 0.0),
        ("", "12", 0.0),
        (r"50\%", "0.6", 0.0),
    ],
)
def test_mathematical_equality(response: str, answer: str, score: float) -> None:
    assert _score(Reward(name="m", type="math-verify"), response, answer) == score


@pytest.mark.parametrize(
    ("response", "score"), [("42", 1.0), (" 42\n", 1.0), ("42.", 0.0), ("", 0.0)]
)
def test_exact_text(response: str, score: float) -> None:
    assert _score(Reward(name="e", type="exact"), response, "42") == score


@pytest.mark.parametrize(
    ("response", "score"),
    [("so <answer>42</answer>", 1.0), ("<answer> 42 </answer>", 1.0), ("42", 0.0)],
)
def test_a_pattern_captures_the_answer(response: str, score: float) -> None:
    pattern = PatternReward(pattern="<answer>(.*?)</answer>", group=1)

    assert _score(Reward(name="r", type="regex", pattern=pattern), response, "42") == score


def test_a_format_needs_no_right_answer() -> None:
    reward = Reward(name="f", type="format", pattern=PatternReward(pattern="^<a>.*</a>$"))

    assert _score(reward, "<a>wrong</a>", "42") == 1.0
    assert _score(reward, "42", "42") == 0.0


def test_white_space_around_an_answer_does_not_cost_the_dataset_score() -> None:
    dataset = reasoning_gym.create_dataset("basic_arithmetic", size=1, seed=5)
    item = dataset[0]
    raw = dataset.score_answer(item["answer"] + " ", item)

    score = make_scorer(Reward(name="d", type="dataset"), DATA, Path())
    request = RewardRequest(prompt="", response=item["answer"] + " ", answer="", entry=item)

    assert raw < 1.0
    assert score(request) == 1.0


def test_a_threshold_leaves_no_partial_credit() -> None:
    reward = Reward(name="d", type="dataset")
    strict = reward.model_copy(update={"threshold": 1.0})
    item = reasoning_gym.create_dataset("basic_arithmetic", size=1, seed=5)[0]
    response = f"{item['answer']} apples"
    request = RewardRequest(prompt="", response=response, answer="", entry=item)

    lenient = make_scorer(reward, DATA, Path())(request)

    assert 0 < lenient < 1
    assert make_scorer(strict, DATA, Path())(request) == 0.0


@pytest.mark.parametrize("letters", range(3, 11))
def test_a_right_start_with_more_letters_behind_it_is_not_right(letters: int) -> None:
    strict = Reward(name="d", type="dataset", threshold=1.0)
    words = reasoning_gym.create_dataset(
        "spell_backward", size=1, seed=5, min_word_len=letters, max_word_len=letters
    )
    data = Data(reasoning_gym=ReasoningGymData(dataset="spell_backward"))
    score = make_scorer(strict, data, Path())

    def scored(response: str) -> float:
        return score(RewardRequest(prompt="", response=response, answer="", entry=words[0]))

    assert scored(words[0]["answer"]) == 1.0
    assert scored(words[0]["answer"] + "o") == 0.0


@pytest.mark.parametrize(
    ("source", "function", "path", "told"),
    [
        (None, "reward", "spec.rewards[0].python.path", "cannot be read"),
        ("def reward(:\n", "reward", "spec.rewards[0].python.path", "not valid Python"),
        ("def rewards(): ...\n", "reward", "spec.rewards[0].python.function", "defines rewards"),
        ("x = 1\n", "reward", "spec.rewards[0].python.function", "no function"),
    ],
)
def test_problems_of_python_rewards_are_found_before_the_run(
    tmp_path: Path, source: str | None, function: str, path: str, told: str
) -> None:
    if source is not None:
        (tmp_path / "mine.py").write_text(source)
    python = PythonReward(path="mine.py", function=function)

    (problem,) = reward_problems(
        [Reward(name="mine", type="python", python=python)], base_dir=tmp_path
    )

    assert problem.path == path
    assert re.search(told, problem.message)
