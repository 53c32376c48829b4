"""The `openai` package, as it is, speaks with an engine, and what it drew is trained on token by token."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agent_samples import OPENING, ChatLetters, limits
from rollouts import make_groups, run, sampling
from syllables import ENDS
from tool_samples import both_logprobs

from rljob_api.spec.agent import Agent
from rljob_runtime.models.weights import read_weights
from rljob_runtime.rollout.agents.agent_turns import AgentDesk
from rljob_runtime.rollout.rollout_engine import PromptGroup
from rljob_runtime.rollout.rollout_torch import TorchRollout

AGENT = """
import os
from pathlib import Path

import openai


def play(task, base_url, api_key):
    client = openai.OpenAI()
    assert (str(client.base_url).rstrip("/"), client.api_key) == (base_url, api_key)
    messages, texts = [{"role": "user", "content": task["prompt"]}], []
    if task["prompt"] == "DIE":
        os._exit(3)
    if task["prompt"] == "RAISE":
        raise ValueError("no idea")

    def ask(**more):
        given = {"model": "any", "messages": messages, "max_tokens": 5, "temperature": 0.3}
        return client.chat.completions.create(**(given | more))

    first = ask()
    again = ask(extra_headers={"x-stainless-retry-count": "1"})
    assert again.choices[0] == first.choices[0] and again.id == first.id
    if task["prompt"] == "BRANCH":
        ask(messages=[{"role": "user", "content": "OTHER"}])
    Path(task["answer"]).touch()  # other weights come now
    messages += [first.choices[0].message, {"role": "user", "content": "MORE"}]
    chunks = list(ask(stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    usage = chunks[-1].usage
    messages.append({"role": "assistant", "content": text})
    messages.append({"role": "user", "content": "LONG" * 9})
    try:
        ask()
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded", error
    try:
        openai.OpenAI(api_key="wrong", max_retries=0).models.list()
    except openai.AuthenticationError:
        return float(usage.completion_tokens)
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[AgentDesk]:
    (tmp_path / "agent.py").write_text(AGENT)
    desk = AgentDesk(
        Agent(path="agent.py", timeout_seconds=300, concurrency=1),
        base_dir=tmp_path,
        tokenizer=ChatLetters(),  # type: ignore[arg-type]
        limits=limits(),
    )
    yield desk
    desk.close()


def groups_of(tmp_path: Path, *prompts: str) -> list[PromptGroup]:
    groups = make_groups([1] * len(prompts), samples=1)
    return [
        replace(
            group,
            token_ids=[OPENING],
            task=f'{{"prompt": "{prompt}", "answer": "{tmp_path / "now"}"}}',
        )
        for group, prompt in zip(groups, prompts, strict=True)
    ]


def how(desk: AgentDesk) -> Any:
    return sampling(agents=desk, eos_ids=ENDS, max_response_length=40)


def test_every_token_has_the_logprob_of_the_weights_that_drew_it(
    desk: AgentDesk, tmp_path: Path, save_reference: Any
) -> None:
    old, new = (save_reference("qwen3", seed)[1] for seed in (0, 1))
    engine = TorchRollout(old, dtype=torch.float32, max_sequences=4, max_length=64)

    def switch() -> None:
        if engine.version == 0 and (tmp_path / "now").exists():
            engine.load_weights(read_weights(new).items(), version=1)

    engine.between = switch
    groups = groups_of(tmp_path, "PLAIN", "BRANCH", "RAISE", "DIE")

    found = run(engine, groups, how(desk))

    samples = [found[group.uids[0]] for group in groups]
    assert [sample.turns for sample in samples] == [2, 2, 1, 1]
    assert set(samples[0].versions) == {0, 1} and set(samples[1].versions) == {1}
    assert len(samples[0].token_ids) == len(samples[0].drawn) <= 40
    (by_old, rolled), (by_new, _) = (both_logprobs(path, groups, found) for path in (old, new))
    versions = torch.tensor([version for sample in samples for version in sample.versions])
    torch.testing.assert_close(
        torch.where(versions == 0, by_old, by_new), rolled, atol=1e-4, rtol=0
    )
    outcomes = [sample.outcome for sample in samples]
    assert [outcome.error for outcome in outcomes if outcome] == [
        "",
        "",
        "ValueError: no idea",
        "it ended its process with exit status 3",
    ]
    second = samples[0].ends[1] - samples[0].ends[0] - 1 - len("MORE")
    assert outcomes[0] is not None and outcomes[0].reward == second
    assert samples[0].finish == samples[1].finish == "length"
    tally = desk.take_tally()
    assert tally.requests == 2 + 3
    assert 0 < tally.left_out <= 5


def test_an_agent_that_takes_too_long_ends_with_what_was_answered(
    tmp_path: Path, save_reference: Any
) -> None:
    (tmp_path / "agent.py").write_text(
        "import json, time, urllib.request\n"
        "def play(task, base_url, api_key):\n"
        "    body = json.dumps({'messages': [{'role': 'user', 'content': 'A'}], 'max_tokens': 3})\n"
        "    head = {'Authorization': 'Bearer ' + api_key}\n"
        "    asked = urllib.request.Request(base_url + '/chat/completions', body.encode(), head)\n"
        "    json.load(urllib.request.urlopen(asked))\n"
        "    time.sleep(1000)\n"
    )
    desk = AgentDesk(
        Agent(path="agent.py", timeout_seconds=8, concurrency=1),
        base_dir=tmp_path,
        tokenizer=ChatLetters(),  # type: ignore[arg-type]
        limits=limits(),
    )
    engine = TorchRollout(
        save_reference("qwen3")[1], dtype=torch.float32, max_sequences=4, max_length=64
    )

    (sample,) = run(engine, groups_of(tmp_path, "A"), how(desk)).values()
    desk.close()

    assert sample.turns == 1
    assert sample.outcome is not None and "took longer than 8 s" in sample.outcome.error
