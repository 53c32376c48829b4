"""Rewards over HTTP: a scoring service, and a language model that judges.

Called in the reward's child processes. All attempts of a score share its deadline; what is said of a failure
names address and status, never headers or tokens.
"""

import json
import math
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from rljob_api.spec.json_text import parse_json
from rljob_api.spec.reward_services import HttpReward, JudgeReward
from rljob_runtime.errors import ServiceError
from rljob_runtime.task.rewards.requests import RewardRequest

RETRIED = (408, 429)
FIRST_WAIT_SECONDS = 0.1
LARGEST_ANSWER_BYTES = 16 << 20
SHARE_OF_DEADLINE = 0.9
"""What attempts may take: the rest is for saying that they failed, before the process is killed."""


def service_scorer(
    settings: HttpReward, *, deadline_seconds: float
) -> Callable[[RewardRequest], float]:
    """Posts prompt, response and answer; the answer's `score` is the reward."""

    def score(request: RewardRequest) -> float:
        sent = {
            "prompt": request.prompt,
            "response": request.response,
            "answer": request.answer,
        }
        if request.transcript not in ("", request.response):  # of samples with tools
            sent["transcript"] = request.transcript
        found = post(settings.url, sent, settings, deadline_seconds=deadline_seconds)
        number = found.get("score") if isinstance(found, dict) else None
        if isinstance(number, bool | int | float) and math.isfinite(number):
            return float(number)
        raise ServiceError(
            f"{settings.url} answered {str(found)[:200]!r}, which has no finite number as `score`"
        )

    return score


def judge_scorer(
    settings: JudgeReward, *, deadline_seconds: float
) -> Callable[[RewardRequest], float]:
    """Asks the judge and reads the grade from its answer, as a share of the highest one."""
    url, pattern = settings.url.rstrip("/") + "/chat/completions", re.compile(settings.pattern)

    def score(request: RewardRequest) -> float:
        sent = {
            "model": settings.model,
            "messages": [{"role": "user", "content": _filled(settings.template, request)}],
            "temperature": 0,
            "max_tokens": settings.max_tokens,
        }
        found = post(url, sent, settings, deadline_seconds=deadline_seconds)
        try:
            text = str(found["choices"][0]["message"]["content"])
        except (KeyError, IndexError, TypeError):
            raise ServiceError(f"{url} answered without choices[0].message.content") from None
        grades = pattern.findall(text)
        if not grades:
            raise ServiceError(f"the judge gave no grade that {settings.pattern!r} finds")
        grade = grades[-1][0] if isinstance(grades[-1], tuple) else grades[-1]
        return min(float(grade), settings.highest_grade) / settings.highest_grade

    return score


def post(url: str, content: Any, settings: HttpReward, *, deadline_seconds: float) -> Any:
    """The JSON that an address answers. Raises ServiceError after the last attempt, or a final refusal."""
    deadline = time.monotonic() + SHARE_OF_DEADLINE * deadline_seconds
    attempts, wait, said = settings.retries + 1, FIRST_WAIT_SECONDS, ""
    for attempt in range(attempts):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            return _post_once(url, content, settings, seconds=left / (attempts - attempt))
        except urllib.error.HTTPError as error:
            said = f"status {error.code}"
            if error.code not in RETRIED and error.code < 500:
                raise ServiceError(f"{url} refused a request: {said}") from None
        except (OSError, ValueError) as error:
            said = str(getattr(error, "reason", error)) or type(error).__name__
        if attempt + 1 < attempts:
            time.sleep(max(0.0, min(wait, deadline - time.monotonic())))
            wait *= 2
    raise ServiceError(f"{url} did not answer in {attempts} attempts ({said})")


def _post_once(url: str, content: Any, settings: HttpReward, *, seconds: float) -> Any:
    headers = {"Content-Type": "application/json"}
    if settings.token_variable is not None:
        token = os.environ.get(settings.token_variable)
        if not token:
            raise ServiceError(f"the environment has no {settings.token_variable} (tokenVariable)")
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, json.dumps(content).encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=seconds) as answer:
        return parse_json(answer.read(LARGEST_ANSWER_BYTES))


def _filled(template: str, request: RewardRequest) -> str:
    """Values are filled in once: braces in a response stay what they are."""
    values = {"prompt": request.prompt, "response": request.response, "answer": request.answer}
    values["transcript"] = request.transcript or request.response
    return re.sub(
        r"\{(prompt|response|answer|transcript)\}", lambda match: values[match[1]], template
    )
