"""Find answers in the data that a job's rewards cannot score, before anything starts.

Called by the CLI. Each answer is scored as a response that contains it. Answers of users' files are
scored in child processes like later responses, and stopped at the reward's deadline, since some never
end. Answers made by a data set are scored in this process.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from rljob_api.spec.messages import show
from rljob_api.spec.problems import Problem
from rljob_api.spec.workload import Data, Reward
from rljob_runtime.task.data.question import Question
from rljob_runtime.task.rewards.requests import RewardRequest, RewardResult
from rljob_runtime.task.rewards.restricted_scorers import score_or_error
from rljob_runtime.task.rewards.scorer_pool import RewardPool
from rljob_runtime.task.rewards.scorers import NUMBER, RESPONSES_WITH_ANSWER, raw_scorer

SHOWN_ANSWERS = 5
ANSWERS_PER_PROCESS = 100
"""Number of answers that justify another process, which takes a second or two to start."""


def answer_problems(
    rewards: Sequence[Reward], data: Data, questions: Sequence[Question], *, base_dir: Path
) -> list[Problem]:
    """Return problems for answers that do not score 1 as a response, by the rewards that compare the two.

    These are math-verify, boxes, count and dataset. It cannot be known which answers a pattern, a user's
    function or a service accepts. Raises RewardError if the scoring processes do not start.
    """
    problems = []
    for index, reward in enumerate(rewards):
        if reward.type in RESPONSES_WITH_ANSWER and (requests := _requests_for(reward, questions)):
            wrong = list(_unscorable(reward, data, requests, base_dir))
            shown = wrong[:SHOWN_ANSWERS]
            if more := len(wrong) - len(shown):
                shown.append(f"{more} other answers cannot be scored either")
            problems += [Problem(f"spec.rewards[{index}]", text) for text in shown]
    return problems


def _requests_for(reward: Reward, questions: Iterable[Question]) -> list[RewardRequest]:
    """Return a request for each different answer, except plain numbers, which are equal to themselves."""
    respond, by_entry = RESPONSES_WITH_ANSWER[reward.type], reward.type == "dataset"
    requests = {}
    for question in questions:
        answer = question.answer
        plain = NUMBER.fullmatch(answer.strip()) is not None
        if (answer or not by_entry) and (by_entry or not plain):
            entry = question.entry if by_entry else {}
            key = (answer, str(entry))
            requests[key] = RewardRequest(
                prompt="", response=respond(answer), answer=answer, entry=entry
            )
    return list(requests.values())


def _unscorable(
    reward: Reward, data: Data, requests: Sequence[RewardRequest], base_dir: Path
) -> Iterable[str]:
    compared = reward.model_copy(update={"pattern": None, "threshold": None, "weight": 1.0})
    score = _score_in_process if reward.type == "dataset" else _score_in_children
    results = score(compared, data, requests, base_dir)
    for request, result in zip(requests, results, strict=True):
        if error := result.errors.get(reward.name):
            yield f"cannot score the answer {show(request.answer)} of the data: {error}"
        elif result.parts[reward.name] < 1.0:
            yield (
                f"is {reward.type}, by which the answer {show(request.answer)} of the data scores "
                f"{result.parts[reward.name]:g} where a response gives it; write the answer in another form, "
                "or use a type that takes it, such as exact or python"
            )


def _score_in_process(
    reward: Reward, data: Data, requests: Sequence[RewardRequest], base_dir: Path
) -> list[RewardResult]:
    """Score in this process, since a child would import all data sets again, which takes seconds."""
    scorer = raw_scorer(reward, data, base_dir)
    results = []
    for request in requests:
        answer = score_or_error(scorer, request)
        score = answer.get("score", 0.0)
        errors = (
            {reward.name: f"reward {reward.name}: {answer['error']}"} if "error" in answer else {}
        )
        results.append(RewardResult(total=score, parts={reward.name: score}, errors=errors))
    return results


def _score_in_children(
    reward: Reward, data: Data, requests: Sequence[RewardRequest], base_dir: Path
) -> list[RewardResult]:
    processes = min(os.cpu_count() or 1, 1 + len(requests) // ANSWERS_PER_PROCESS)
    pool = RewardPool([reward], data, processes=processes, base_dir=base_dir)
    try:
        return pool.score(requests)
    finally:
        pool.close()
