"""Answers of the data that a job's rewards cannot score, found before anything starts.

Called by the CLI. An answer is scored as a response that gives it. Answers of users' files are scored in the
processes that score later, and stopped at the deadline of the reward: some have no end. Those that a data set
made are scored here.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rljob_api.spec.messages import show
from rljob_api.spec.problems import Problem
from rljob_api.spec.workload import Data, Reward
from rljob_runtime.task.data.question import Question
from rljob_runtime.task.rewards.requests import RewardRequest, RewardResult
from rljob_runtime.task.rewards.restricted_scorers import answer_of
from rljob_runtime.task.rewards.scorer_pool import RewardPool
from rljob_runtime.task.rewards.scorers import GIVEN, NUMBER, raw_scorer

SHOWN_ANSWERS = 5
A_PROCESS = 100
"""Answers that are worth another process, which takes a second or two to start."""


def answer_problems(
    rewards: Sequence[Reward], data: Data, questions: Sequence[Question], *, base_dir: Path
) -> list[Problem]:
    """Answers that do not score 1 where they are given as the response, by the rewards that compare the two:
    math-verify, boxes, count and dataset. What matches a pattern, and what a user's function or a service
    finds right, is not known. Raises RewardError when the processes that score do not start."""
    problems = []
    for index, reward in enumerate(rewards):
        if reward.type in GIVEN and (asked := _asked(reward, questions)):
            wrong = list(_wrong(reward, data, asked, base_dir))
            shown = wrong[:SHOWN_ANSWERS]
            if more := len(wrong) - len(shown):
                shown.append(f"{more} other answers cannot be scored either")
            problems += [Problem(f"spec.rewards[{index}]", text) for text in shown]
    return problems


def _asked(reward: Reward, questions: Iterable[Question]) -> list[RewardRequest]:
    """Each answer once, but plain numbers, which are equal to themselves."""
    given, by_entry = GIVEN[reward.type], reward.type == "dataset"
    asked = {}
    for question in questions:
        answer = question.answer
        plain = NUMBER.fullmatch(answer.strip()) is not None
        if (answer or not by_entry) and (by_entry or not plain):
            entry = question.entry if by_entry else {}
            key = (answer, str(entry))
            asked[key] = RewardRequest(
                prompt="", response=given(answer), answer=answer, entry=entry
            )
    return list(asked.values())


def _wrong(
    reward: Reward, data: Data, asked: Sequence[RewardRequest], base_dir: Path
) -> Iterable[str]:
    compared = reward.model_copy(update={"pattern": None, "threshold": None, "weight": 1.0})
    score = _scored_here if reward.type == "dataset" else _scored_apart
    results = score(compared, data, asked, base_dir)
    for request, result in zip(asked, results, strict=True):
        if error := result.errors.get(reward.name):
            yield f"cannot score the answer {show(request.answer)} of the data: {error}"
        elif result.parts[reward.name] < 1.0:
            yield (
                f"is {reward.type}, by which the answer {show(request.answer)} of the data scores "
                f"{result.parts[reward.name]:g} where a response gives it; write the answer in another form, "
                "or use a type that takes it, such as exact or python"
            )


def _scored_here(
    reward: Reward, data: Data, asked: Sequence[RewardRequest], base_dir: Path
) -> list[RewardResult]:
    """A process of its own would import all data sets again, which takes seconds."""
    scorer = raw_scorer(reward, data, base_dir)
    results = []
    for request in asked:
        answer = answer_of(scorer, request)
        score = answer.get("score", 0.0)
        errors = (
            {reward.name: f"reward {reward.name}: {answer['error']}"} if "error" in answer else {}
        )
        results.append(RewardResult(total=score, parts={reward.name: score}, errors=errors))
    return results


def _scored_apart(
    reward: Reward, data: Data, asked: Sequence[RewardRequest], base_dir: Path
) -> list[RewardResult]:
    processes = min(os.cpu_count() or 1, 1 + len(asked) // A_PROCESS)
    pool = RewardPool([reward], data, processes=processes, base_dir=base_dir)
    try:
        return pool.score(asked)
    finally:
        pool.close()
