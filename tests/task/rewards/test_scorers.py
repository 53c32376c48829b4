"""What each type of reward gives for which response."""

import re
from pathlib import Path

import pytest
import reasoning_gym
import torch
from transformers.loss.loss_for_object_detection import box_iou

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


ONE, FAR, HALF = "[0, 0, 10, 10]", "[50, 50, 60, 60]", "[5, 0, 15, 10]"
THIRD = 50 / 150  # ONE and HALF share 5 × 10 of 15 × 10


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        (ONE, ONE, 1.0),
        ('```json\n[{"bbox_2d": [0, 0, 10, 10], "label": "cat"}]\n```', ONE, 1.0),
        ("(0,0),(10,10)", ONE, 1.0),
        ("(0.0, 0.0, 10.0, 10.0)", ONE, 1.0),
        (HALF, ONE, THIRD),
        ("[-5, -5, 5, 5]", ONE, 25 / 175),
        ("[2, 2, 4, 4]", ONE, 4 / 100),
        ("[10, 0, 20, 10]", ONE, 0.0),  # they touch
        ("[10, 10, 0, 0]", ONE, 0.0),
        ("[3, 3, 3, 9]", "[3, 3, 3, 9]", 0.0),
        (f"{FAR} or {ONE}", ONE, 0.5),
        (ONE, f"[{ONE}, {FAR}]", 0.5),
        (f"{FAR}{HALF}", f"{ONE}{FAR}", (1 + THIRD) / 2),
        (f"{HALF}{ONE}", f"{ONE}{ONE}", (1 + THIRD) / 2),
        (f"{ONE}{ONE}", f"{ONE}{FAR}", 0.5),
        ("", ONE, 0.0),
        ("[0, 0, 10], [1, 2, 3, 4, 5], [a, b, c, d]", ONE, 0.0),
        ("none", "[]", 1.0),
        (ONE, "[]", 0.0),
        (ONE * 1001, ONE, 0.0),
    ],
)
def test_boxes_overlap(response: str, answer: str, score: float) -> None:
    assert _score(Reward(name="b", type="boxes"), response, answer) == pytest.approx(score)


def test_boxes_overlap_as_transformers_has_it() -> None:
    random = torch.Generator().manual_seed(1)
    corners, sizes = torch.randint(1, 40, (2, 12, 2), generator=random)
    boxes = torch.cat([corners, corners + sizes], dim=1)
    expected, _ = box_iou(boxes.float(), boxes.float())

    for i, one in enumerate(boxes.tolist()):
        for j, other in enumerate(boxes.tolist()):
            found = _score(Reward(name="b", type="boxes"), str(one), str(other))
            assert found == pytest.approx(float(expected[i, j]), abs=1e-6)


@pytest.mark.parametrize(
    ("response", "answer", "score"),
    [
        ("There are 2 birds on 4 trees: 3", "3", 1.0),
        ("3", "4", 0.75),
        ("4", "3", 0.75),
        ("3.0", "3", 1.0),
        ("0", "0", 1.0),
        ("2", "0", 0.0),
        ("-1", "1", 0.0),
        ("three", "3", 0.0),
        ("9" * 400, "3", 0.0),
    ],
)
def test_counts_are_near(response: str, answer: str, score: float) -> None:
    assert _score(Reward(name="c", type="count"), response, answer) == score


def test_only_the_right_count_passes() -> None:
    strict = Reward(name="c", type="count", threshold=1.0)

    assert _score(strict, "9007199254740991", "9007199254740990") == 0.0
    assert _score(strict, "9007199254740990", "9007199254740990") == 1.0


@pytest.mark.parametrize(("kind", "right"), [("boxes", ONE), ("count", "3")])
def test_boxes_and_counts_may_be_read_of_a_part_alone(kind: str, right: str) -> None:
    pattern = PatternReward(pattern="<answer>(.*)</answer>", group=1)
    reward = Reward(name="r", type=kind, pattern=pattern)

    assert _score(reward, f"maybe {FAR} <answer>{right}</answer>, or 8", right) == 1.0
    assert _score(reward, right, right) == 0.0


@pytest.mark.parametrize(
    ("kind", "message"), [("boxes", "has no box; write"), ("count", "is no number; write")]
)
def test_answers_that_cannot_be_met_are_errors(kind: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"the answer 'a cat' {message}"):
        _score(Reward(name="r", type=kind), "3", "a cat")


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
