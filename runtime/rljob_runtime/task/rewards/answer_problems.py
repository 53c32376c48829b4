"""Answers of the data that a job's rewards cannot score, found before anything starts.

Called by the CLI. An answer is scored as a response that gives it, in the processes that score later: some
have no end, and are stopped at the deadline of the reward.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rljob_api.spec.messages import show
from rljob_api.spec.problems import Problem
from rljob_api.spec.workload import Data, Reward
from rljob_runtime.task.data.question import Question
from rljob_runtime.task.rewards.requests import RewardRequest
from rljob_runtime.task.rewards.scorer_pool import RewardPool
from rljob_runtime.task.rewards.scorers import GIVEN, NUMBER

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
    whole = reward.model_copy(update={"pattern": None, "threshold": None})
    processes = min(os.cpu_count() or 1, 1 + len(asked) // A_PROCESS)
    pool = RewardPool([whole], data, processes=processes, base_dir=base_dir)
    try:
        results = pool.score(asked)
    finally:
        pool.close()
    for request, result in zip(asked, results, strict=True):
        if error := result.errors.get(reward.name):
            yield f"cannot score the answer {show(request.answer)} of the data: {error}"
        elif result.parts[reward.name] < 1.0:
            yield (
                f"is {reward.type}, by which the answer {show(request.answer)} of the data scores "
                f"{result.parts[reward.name]:g} where a response gives it; write the answer in another form, "
                "or use a type that takes it, such as exact or python"
            )
