"""Rewards over HTTP against servers that listen: a scoring service and an OpenAI-compatible judge."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rljob_api.spec.workload import Data, Reward
from rljob_runtime.task.rewards.scorer_pool import (
    RewardPool,
    RewardRequest,
    RewardResult,
    processes_of,
)

Answer = Callable[[dict[str, Any], int], tuple[int, Any]]
"""Of what was asked and how often before, the status and the JSON."""
DATA = Data.model_validate({"jsonl": {"path": "prompts.jsonl"}})


@dataclass
class Service:
    """A server that keeps what it was asked."""

    answer: Answer
    asked: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    address: str = ""
    released: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], Service]]:
    """Starts servers that answer so."""
    running: list[tuple[ThreadingHTTPServer, Service]] = []

    def start(answer: Answer) -> Service:
        service = Service(answer)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                service.asked.append(sent)
                service.paths.append(self.path)
                service.tokens.append(self.headers.get("Authorization"))
                status, found = service.answer(sent, len(service.asked) - 1)
                content = json.dumps(found).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)
                except OSError:
                    return  # who asked has gone

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        service.address = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running.append((server, service))
        return service

    yield start
    for server, service in running:
        service.released.set()
        server.shutdown()
        server.server_close()


def score(tmp_path: Path, responses: list[str], **settings: Any) -> list[RewardResult]:
    kind = settings["type"]
    settings[kind] = {"concurrency": 1} | settings[kind]
    reward = Reward.model_validate({"name": "served", "timeoutSeconds": 20, **settings})
    pool = RewardPool([reward], DATA, processes=processes_of([reward]), base_dir=tmp_path)
    try:
        return pool.score(
            [RewardRequest(prompt="2+3?", response=r, answer="5", entry={}) for r in responses]
        )
    finally:
        pool.close()


def test_a_service_scores_each_response_in_order(tmp_path, serve):
    service = serve(lambda sent, _: (200, {"score": len(sent["response"]) / 10}))

    results = score(
        tmp_path,
        ["a", "bb", "ccc"],
        type="http",
        http={"url": service.address + "/score", "concurrency": 2},
    )

    assert [result.total for result in results] == [0.1, 0.2, 0.3]
    assert not any(result.errors for result in results)
    asked = sorted(service.asked, key=lambda sent: str(sent["response"]))
    assert asked[0] == {"prompt": "2+3?", "response": "a", "answer": "5"}
    assert service.paths == ["/score"] * 3


def test_a_busy_service_is_asked_again_until_it_answers(tmp_path, serve):
    service = serve(lambda _, before: (503, {}) if before < 2 else (200, {"score": 1}))

    (result,) = score(tmp_path, ["x"], type="http", http={"url": service.address, "retries": 2})

    assert (result.total, result.errors, len(service.asked)) == (1.0, {}, 3)


def test_a_service_that_stays_away_is_an_error_by_name_and_counts_0(tmp_path, serve):
    service: Any = serve(lambda *_: (500, {}))

    (result,) = score(tmp_path, ["x"], type="http", http={"url": service.address, "retries": 1})

    assert result.total == 0.0
    assert "did not answer in 2 attempts (status 500)" in result.errors["served"]
    assert len(service.asked) == 2


def test_a_refusal_is_final(tmp_path, serve):
    service: Any = serve(lambda *_: (401, {}))

    (result,) = score(tmp_path, ["x"], type="http", http={"url": service.address, "retries": 5})

    assert "refused a request: status 401" in result.errors["served"]
    assert len(service.asked) == 1


def test_a_service_that_hangs_is_given_up_within_the_deadline(tmp_path, serve):
    service: Any = serve(lambda *_: (service.released.wait(30), (200, {"score": 1}))[1])

    (result,) = score(
        tmp_path,
        ["x"],
        type="http",
        timeoutSeconds=1.5,
        http={"url": service.address, "retries": 1},
    )

    assert result.total == 0.0
    assert "did not answer in 2 attempts (timed out)" in result.errors["served"]


@pytest.mark.parametrize("answered", ["good", float("nan"), float("inf"), None])
def test_an_answer_without_a_number_is_an_error(tmp_path, serve, answered):
    service: Any = serve(lambda *_: (200, {"score": answered}))

    (result,) = score(tmp_path, ["x"], type="http", http={"url": service.address})

    assert "which has no finite number as `score`" in result.errors["served"]


def test_a_token_comes_from_the_environment_and_into_no_message(tmp_path, serve, monkeypatch):
    monkeypatch.setenv("SCORE_TOKEN", "tell-nobody")
    service: Any = serve(lambda *_: (403, {"detail": "tell-nobody"}))

    (result,) = score(
        tmp_path, ["x"], type="http", http={"url": service.address, "tokenVariable": "SCORE_TOKEN"}
    )

    assert service.tokens == ["Bearer tell-nobody"]
    assert "tell-nobody" not in result.errors["served"]


def judged(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def test_a_judge_is_asked_as_a_chat_and_its_last_grade_counts(tmp_path, serve):
    service: Any = serve(lambda *_: (200, judged("Grade: 2? No. Grade: 7.5")))

    (result,) = score(
        tmp_path,
        ["{answer} 5"],
        type="judge",
        judge={"url": service.address + "/v1/", "model": "grader"},
    )

    assert result.total == 0.75
    assert service.paths == ["/v1/chat/completions"]
    (sent,) = service.asked
    assert (sent["model"], sent["temperature"]) == ("grader", 0)
    question = sent["messages"][0]["content"]
    assert "Question:\n2+3?" in question and "Expected answer:\n5" in question
    assert "Answer to grade:\n{answer} 5" in question  # a response fills in nothing


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (judged("I would rather not."), "gave no grade"),
        ({"choices": []}, "answered without choices"),
    ],
)
def test_a_judge_that_gives_no_grade_is_an_error(tmp_path, serve, found, said):
    service: Any = serve(lambda *_: (200, found))

    (result,) = score(
        tmp_path, ["x"], type="judge", judge={"url": service.address, "model": "grader"}
    )

    assert result.total == 0.0
    assert said in result.errors["served"]


def test_grades_above_the_highest_count_as_it(tmp_path, serve):
    service: Any = serve(lambda *_: (200, judged("Grade: 11")))

    (result,) = score(
        tmp_path, ["x"], type="judge", judge={"url": service.address, "model": "grader"}
    )

    assert result.total == 1.0
