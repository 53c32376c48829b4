"""Score over HTTP: by a scoring service, or by a language model as judge.

Called in the reward's child processes. All attempts of a score share its deadline. Error messages name
address and status, never headers or tokens.
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
"""Share of the deadline for all attempts; the remainder is for reporting their failure before the
process is killed."""


def service_scorer(
    settings: HttpReward, *, deadline_seconds: float
) -> Callable[[RewardRequest], float]:
    """Return a scorer that posts prompt, response and answer; the service's `score` is the reward."""

    def score(request: RewardRequest) -> float:
        payload = {
            "prompt": request.prompt,
            "response": request.response,
            "answer": request.answer,
        }
        if request.transcript not in ("", request.response):  # for samples with tools
            payload["transcript"] = request.transcript
        answer = post(settings.url, payload, settings, deadline_seconds=deadline_seconds)
        number = answer.get("score") if isinstance(answer, dict) else None
        if isinstance(number, bool | int | float) and math.isfinite(number):
            return float(number)
        raise ServiceError(
            f"{settings.url} answered {str(answer)[:200]!r}, which has no finite number as `score`"
        )

    return score


def judge_scorer(
    settings: JudgeReward, *, deadline_seconds: float
) -> Callable[[RewardRequest], float]:
    """Return a scorer that requests a grade from the judge; the reward is its share of the highest
    grade."""
    url, pattern = settings.url.rstrip("/") + "/chat/completions", re.compile(settings.pattern)

    def score(request: RewardRequest) -> float:
        payload = {
            "model": settings.model,
            "messages": [{"role": "user", "content": _fill(settings.template, request)}],
            "temperature": 0,
            "max_tokens": settings.max_tokens,
        }
        answer = post(url, payload, settings, deadline_seconds=deadline_seconds)
        try:
            text = str(answer["choices"][0]["message"]["content"])
        except (KeyError, IndexError, TypeError):
            raise ServiceError(f"{url} answered without choices[0].message.content") from None
        grades = pattern.findall(text)
        if not grades:
            raise ServiceError(f"the judge gave no grade that {settings.pattern!r} finds")
        grade = grades[-1][0] if isinstance(grades[-1], tuple) else grades[-1]
        return min(float(grade), settings.highest_grade) / settings.highest_grade

    return score


def post(url: str, content: Any, settings: HttpReward, *, deadline_seconds: float) -> Any:
    """Return the JSON that an address answers. Raises ServiceError after the last attempt, or if the
    request is refused."""
    deadline = time.monotonic() + SHARE_OF_DEADLINE * deadline_seconds
    attempts, wait, failure = settings.retries + 1, FIRST_WAIT_SECONDS, ""
    for attempt in range(attempts):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            return _post_once(url, content, settings, seconds=left / (attempts - attempt))
        except urllib.error.HTTPError as error:
            failure = f"status {error.code}"
            if error.code not in RETRIED and error.code < 500:
                raise ServiceError(f"{url} refused a request: {failure}") from None
        except (OSError, ValueError) as error:
            failure = str(getattr(error, "reason", error)) or type(error).__name__
        if attempt + 1 < attempts:
            time.sleep(max(0.0, min(wait, deadline - time.monotonic())))
            wait *= 2
    raise ServiceError(f"{url} did not answer in {attempts} attempts ({failure})")


def _post_once(url: str, content: Any, settings: HttpReward, *, seconds: float) -> Any:
    headers = {"Content-Type": "application/json"}
    if settings.token_variable is not None:
        token = os.environ.get(settings.token_variable)
        if not token:
            raise ServiceError(f"the environment has no {settings.token_variable} (tokenVariable)")
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(url, json.dumps(content).encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=seconds) as response:
        return parse_json(response.read(LARGEST_ANSWER_BYTES))


def _fill(template: str, request: RewardRequest) -> str:
    """Fill in the values once: braces in a response are not replaced."""
    values = {"prompt": request.prompt, "response": request.response, "answer": request.answer}
    values["transcript"] = request.transcript or request.response
    return re.sub(
        r"\{(prompt|response|answer|transcript)\}", lambda match: values[match[1]], template
    )
