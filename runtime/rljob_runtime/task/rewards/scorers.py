"""The scorers: a function from a response to a number, one for each type of reward.

Used in the child processes alone: they may hang, crash, or run a user's code.
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
    """The scorer of one reward; a threshold turns its score into 0 or 1."""
    return with_threshold(raw_scorer(reward, data, base_dir), reward)


def raw_scorer(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """The same without its threshold."""
    return SCORERS.get(reward.type, _extension)(reward, data, base_dir)


def with_threshold(score: Scorer, reward: Reward) -> Scorer:
    """It is compared without tolerance: partial credit that comes a rounding error short of the whole is not
    right, and what passes by a hair is what training finds."""
    threshold = reward.threshold
    if threshold is None:
        return score
    return lambda request: float(score(request) >= threshold)


def _dataset(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """The scorer of the dataset that the item is of; outer white space does not count."""
    from rljob_runtime.task.data.gym import make_dataset, params_of

    own = data.reasoning_gym
    assert own is not None, "the rules ask for reasoningGym with type dataset"
    sources = {own.dataset: make_dataset(own.dataset, params_of(own), seed=0, size=1)}
    with contextlib.suppress(Exception):  # what it imports when it first scores, forks have then
        entry = sources[own.dataset][0]
        sources[own.dataset].score_answer(entry["answer"], entry)

    def score(request: RewardRequest) -> float:
        entry = from_json(request.entry)
        name = entry["metadata"].get("source_dataset", own.dataset)
        if name not in sources:  # of an evaluation's suite
            sources[name] = make_dataset(name, {}, seed=0, size=1)
        return _without_overshoot(
            float(sources[name].score_answer(request.response.strip(), entry))
        )

    return score


def _without_overshoot(score: float) -> float:
    """Full marks are exactly 1; what exceeds it is partial credit, added up with rounding errors."""
    return score if score <= 1.0 else math.nextafter(1.0, 0.0)


def _math_verify(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """Mathematical equality; the library's own alarms are off, since our deadline kills."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of alarms that are off
    half = parse(r"\boxed{\frac{1}{2}}", parsing_timeout=None)  # imports, so that forks need not
    verify(half, half, timeout_seconds=None)

    @lru_cache(maxsize=1024)  # a group's responses have one answer
    def expected(answer: str) -> Any:
        found = parse(_as_math(answer), parsing_timeout=None)
        if not found:
            raise ValueError(
                f"the answer {answer!r} has no mathematics in it; write a number or an expression"
            )
        return found

    def score(request: RewardRequest) -> float:
        if request.response.strip() == request.answer.strip():
            return 1.0
        wanted = expected(request.answer)
        found = parse(request.response, parsing_timeout=None)
        return float(verify(wanted, found, timeout_seconds=None))

    return score


DELIMITED = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")
"""Answers that say where their mathematics is."""
WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
"""No product of variables, and no command of LaTeX."""


def _as_math(answer: str) -> str:
    """Return the answer so that all of it is parsed: bare LaTeX, as MATH has it, is read up to its first
    number otherwise. A text without numbers is one symbol, not a product of its letters."""
    if DELIMITED.search(answer):
        return answer
    if "\\" not in answer and WORD.search(answer):
        return answer if NUMBER.search(answer) else rf"\boxed{{\text{{{answer.strip()}}}}}"
    return rf"\boxed{{{answer.strip()}}}"


def _exact(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    return lambda request: float(request.response.strip() == request.answer.strip())


def _regex(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """1 where the pattern's group, or the whole match without one, is the answer."""
    captured = _captured(reward)

    def score(request: RewardRequest) -> float:
        found = captured(request.response)
        return float(found is not None and found.strip() == request.answer.strip())

    return score


def _captured(reward: Reward) -> Callable[[str], str | None]:
    """What a reward reads of a response: all of it without a pattern, else the pattern's group, or the whole
    match without one."""
    if reward.pattern is None:
        return lambda response: response
    pattern, group = re.compile(reward.pattern.pattern), reward.pattern.group or 0

    def search(response: str) -> str | None:
        match = pattern.search(response)
        return match.group(group) if match else None

    return search


def _format(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """1 where the pattern is found."""
    assert reward.pattern is not None, "the rules ask for a pattern with type format"
    pattern = re.compile(reward.pattern.pattern)
    return lambda request: float(pattern.search(request.response) is not None)


def _boxes(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """Intersection over union with the answer's boxes; no box among none is right."""
    captured = _captured(reward)

    def score(request: RewardRequest) -> float:
        expected = boxes_in(request.answer)
        if not expected and request.answer.strip() not in ("", "[]"):
            raise ValueError(
                f"the answer {request.answer!r} has no box; write [left, top, right, bottom], one or more, "
                "or [] for none"
            )
        found = captured(request.response)
        return 0.0 if found is None else agreement(boxes_in(found), expected)

    return score


def _count(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """How near the last number is: 1 without what it is off by, as a share of the larger one."""
    captured = _captured(reward)

    def score(request: RewardRequest) -> float:
        if not NUMBER.fullmatch(request.answer.strip()):
            raise ValueError(
                f"the answer {request.answer!r} is no number; write digits, as 3 or 2.5"
            )
        expected = float(request.answer)
        numbers = NUMBER.findall(captured(request.response) or "")
        if not numbers:
            return 0.0
        found = float(numbers[-1])
        if found == expected:
            return 1.0
        most = max(abs(found), abs(expected))
        near = 1.0 - abs(found - expected) / most if math.isfinite(most) else 0.0
        return min(max(0.0, near), math.nextafter(1.0, 0.0))

    return score


def _python(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """The user's function; it must return a finite number. One with a parameter `transcript` gets it."""
    assert reward.python is not None, "the rules ask for python with type python"
    file = base_dir / reward.python.path
    function = getattr(import_user_file(file), reward.python.function)
    name = f"{reward.python.function} in {file.name}"
    wanted = inspect.signature(function).parameters.keys() & {"transcript"}

    def score(request: RewardRequest) -> float:
        more = {key: getattr(request, key) for key in wanted}
        value = function(request.prompt, request.response, request.answer, **more)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        return _number(value, name)

    return score


def _extension(reward: Reward, data: Data, base_dir: Path) -> Scorer:
    """An installed package's; it must return a finite number."""
    use = ExtensionUse(path=f"reward {reward.name}", kind=ExtensionKind.REWARD, name=reward.type)
    made = load(use)(reward.params or {}, base_dir)
    if not callable(made):
        raise ConfigError(
            f"{use.path}: {use.name!r} made a {type(made).__name__}; it must make a function of a "
            "RewardRequest"
        )
    return lambda request: _number(made(request), reward.type)


def _number(value: Any, name: str) -> float:
    """Return a number of Python, numpy or torch, or a Decimal, as a float. Raises TypeError for all else."""
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


GIVEN: dict[str, Callable[[str], str]] = {
    "math-verify": lambda answer: f"It is {_as_math(answer)}",
    "boxes": str,
    "count": str,
    "dataset": str,
}
"""A response that gives an answer, for the types that compare the two."""

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
