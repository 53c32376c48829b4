"""Define the scorers: a function from a response to a number, one for each type of reward.

Used only in child processes, since they may hang, crash, or run a user's code.
"""

import asyncio
import contextlib
import inspect
import logging
import math
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from rljob_api.spec.workload import Data, Reward
from rljob_runtime.errors import ConfigError
from rljob_runtime.extensions import ExtensionKind, ExtensionUse, load
from rljob_runtime.task.data.entries import from_json
from rljob_runtime.task.rewards.boxes import agreement, boxes_in
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.task.user_file import import_user_file

Scorer = Callable[[RewardRequest], float]
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def make_scorer(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """Return the scorer of one reward; a threshold turns its score into 0 or 1."""
    return with_threshold(raw_scorer(reward, data, base_dir), reward)


def raw_scorer(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """Return the scorer of one reward without its threshold."""
    return SCORERS.get(reward.type, _extension)(reward, data, base_dir)


def with_threshold(score: Scorer, reward: Reward) -> Scorer:
    """Apply the reward's threshold to a scorer, without any tolerance.

    Partial credit that misses the full mark by a rounding error is not right, and training would find
    whatever passes a tolerance.
    """
    threshold = reward.threshold
    if threshold is None:
        return score
    return lambda request: float(score(request) >= threshold)


def _dataset(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """Return the scorer of the item's own dataset; outer white space is ignored."""
    from rljob_runtime.task.data.gym import make_dataset, params_of

    gym = data.reasoning_gym
    assert gym is not None, "the rules ask for reasoningGym with type dataset"
    sources = {gym.dataset: make_dataset(gym.dataset, params_of(gym), seed=0, size=1)}
    with contextlib.suppress(Exception):  # the first score imports modules, which forks then share
        entry = sources[gym.dataset][0]
        sources[gym.dataset].score_answer(entry["answer"], entry)

    def score(request: RewardRequest) -> float:
        entry = from_json(request.entry)
        name = entry["metadata"].get("source_dataset", gym.dataset)
        if name not in sources:  # belongs to an evaluation's suite
            sources[name] = make_dataset(name, {}, seed=0, size=1)
        return _without_overshoot(
            float(sources[name].score_answer(request.response.strip(), entry))
        )

    return score


def _without_overshoot(score: float) -> float:
    """Return the score, but at most the largest number below 1 if it exceeds 1: that is partial credit
    summed with rounding errors."""
    return score if score <= 1.0 else math.nextafter(1.0, 0.0)


def _math_verify(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """Return a scorer for mathematical equality. The library's own alarms are off, since our deadline
    kills the process."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that alarms are off
    example = parse(r"\boxed{\frac{1}{2}}", parsing_timeout=None)  # imports modules before forks
    verify(example, example, timeout_seconds=None)

    @lru_cache(maxsize=1024)  # a group's responses have one answer
    def expected(answer: str) -> Any:
        parsed = parse(_as_math(answer), parsing_timeout=None)
        if not parsed:
            raise ValueError(
                f"the answer {answer!r} has no mathematics in it; write a number or an expression"
            )
        return parsed

    def score(request: RewardRequest) -> float:
        if request.response.strip() == request.answer.strip():
            return 1.0
        parsed_answer = expected(request.answer)
        parsed_response = parse(request.response, parsing_timeout=None)
        return float(verify(parsed_answer, parsed_response, timeout_seconds=None))

    return score


DELIMITED = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")
"""Matches answers that mark where their mathematics is."""
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
"""Matches what is neither a product of variables nor a command of LaTeX."""


def _as_math(answer: str) -> str:
    """Return the answer so that all of it is parsed: bare LaTeX, as in MATH, is otherwise read only up
    to its first number. A text without numbers is one symbol, not a product of its letters."""
    if DELIMITED.search(answer):
        return answer
    if "\\" not in answer and WORD.search(answer):
        return answer if NUMBER.search(answer) else rf"\boxed{{\text{{{answer.strip()}}}}}"
    return rf"\boxed{{{answer.strip()}}}"


def _exact(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    return lambda request: float(request.response.strip() == request.answer.strip())


def _regex(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """Score 1 if the pattern's group, or the full match without a group, is the answer."""
    capture = _capture(reward)

    def score(request: RewardRequest) -> float:
        text = capture(request.response)
        return float(text is not None and text.strip() == request.answer.strip())

    return score


def _capture(reward: Reward) -> Callable[[str], str | None]:
    """Return a function that extracts the scored text of a response: all of it without a pattern,
    otherwise the pattern's group, or the full match without a group."""
    if reward.pattern is None:
        return lambda response: response
    pattern, group = re.compile(reward.pattern.pattern), reward.pattern.group or 0

    def search(response: str) -> str | None:
        match = pattern.search(response)
        return match.group(group) if match else None

    return search


def _format(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """Score 1 if the pattern is found."""
    assert reward.pattern is not None, "the rules ask for a pattern with type format"
    pattern = re.compile(reward.pattern.pattern)
    return lambda request: float(pattern.search(request.response) is not None)


def _boxes(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """Score the intersection over union with the answer's boxes; no box is right if none is expected."""
    capture = _capture(reward)

    def score(request: RewardRequest) -> float:
        expected = boxes_in(request.answer)
        if not expected and request.answer.strip() not in ("", "[]"):
            raise ValueError(
                f"the answer {request.answer!r} has no box; write [left, top, right, bottom], one or more, "
                "or [] for none"
            )
        text = capture(request.response)
        return 0.0 if text is None else agreement(boxes_in(text), expected)

    return score


def _count(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """Score how near the last number is: 1 minus its difference as a share of the larger number."""
    capture = _capture(reward)

    def score(request: RewardRequest) -> float:
        if not NUMBER.fullmatch(request.answer.strip()):
            raise ValueError(
                f"the answer {request.answer!r} is no number; write digits, as 3 or 2.5"
            )
        expected = float(request.answer)
        numbers = NUMBER.findall(capture(request.response) or "")
        if not numbers:
            return 0.0
        number = float(numbers[-1])
        if number == expected:
            return 1.0
        most = max(abs(number), abs(expected))
        closeness = 1.0 - abs(number - expected) / most if math.isfinite(most) else 0.0
        return min(max(0.0, closeness), math.nextafter(1.0, 0.0))

    return score


def _python(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """Score by the user's function, which must return a finite number. A parameter `transcript`
    receives the transcript."""
    assert reward.python is not None, "the rules ask for python with type python"
    file = base_dir / reward.python.path
    function = getattr(import_user_file(file), reward.python.function)
    name = f"{reward.python.function} in {file.name}"
    optional = inspect.signature(function).parameters.keys() & {"transcript"}

    def score(request: RewardRequest) -> float:
        named = {key: getattr(request, key) for key in optional}
        value = function(request.prompt, request.response, request.answer, **named)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        return _number(value, name)

    return score


def _extension(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """Score by an installed package's scorer, which must return a finite number."""
    use = ExtensionUse(path=f"reward {reward.name}", kind=ExtensionKind.REWARD, name=reward.type)
    scorer = load(use)(reward.params or {}, base_dir)
    if not callable(scorer):
        raise ConfigError(
            f"{use.path}: {use.name!r} made a {type(scorer).__name__}; it must make a function of a "
            "RewardRequest"
        )
    return lambda request: _number(scorer(request), reward.type)


def _number(value: Any, name: str) -> float:
    """Return a number of Python, numpy or torch, or a Decimal, as a float. Raises TypeError for any
    other value."""
    if not isinstance(value, str | bytes):
        with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):
            number = float(value)
            if math.isfinite(number):
                return number
    raise TypeError(f"{name} returned {value!r}; it must return a finite number")


def _http(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    from rljob_runtime.task.rewards.services import service_scorer

    assert reward.http is not None, "the rules ask for http with type http"
    return service_scorer(reward.http, deadline_seconds=reward.timeout_seconds)


def _judge(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    from rljob_runtime.task.rewards.services import judge_scorer

    assert reward.judge is not None, "the rules ask for judge with type judge"
    return judge_scorer(reward.judge, deadline_seconds=reward.timeout_seconds)


RESPONSES_WITH_ANSWER: dict[str, Callable[[str], str]] = {
    "math-verify": lambda answer: f"It is {_as_math(answer)}",
    "boxes": str,
    "count": str,
    "dataset": str,
}
"""Functions that make a response containing an answer, for the types that compare the two."""

SCORERS: dict[str, Callable[[Reward, Data, Path], Scorer]] = {
    "dataset": _dataset,
    "math-verify": _math_verify,
    "exact": _exact,
    "regex": _regex,
    "format": _format,
    "boxes": _boxes,
    "count": _count,
    "python": _python,
    "http": _http,
    "judge": _judge,
}
