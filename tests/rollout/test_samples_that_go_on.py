"""A sample that stops at a budget and goes on later is the sample that was made in one part."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rollouts import PLAIN, make_groups, run, sampling

from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, RolloutEngine, Sampling
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.rollout.rollout_transformers import TransformersRollout

SaveReference = Callable[..., tuple[Any, Path]]
BUDGET = 5


@pytest.fixture(params=[TorchRollout, TransformersRollout])
def engine(request: pytest.FixtureRequest, save_reference: SaveReference) -> RolloutEngine:
    """Each engine, with fewer rows than the groups have samples."""
    path = save_reference("qwen3")[1]
    made: RolloutEngine = request.param(path, dtype=torch.float32, max_sequences=7, max_length=64)
    return made


def go_on(group: PromptGroup, uid: str, begun: list[int]) -> PromptGroup:
    """One sample of the group, behind what it has."""
    seed = group.seeds[group.uids.index(uid)]
    return replace(group, uids=[uid], seeds=[seed], begun=begun, budget=BUDGET)


def in_parts(engine: RolloutEngine, groups: list[PromptGroup], how: Sampling) -> dict[str, Any]:
    """Every sample, made by calls of at most BUDGET tokens: tokens, log-probs, finish, calls."""
    found: dict[str, Any] = {uid: ([], [], "", 0) for group in groups for uid in group.uids}
    left = [replace(group, budget=BUDGET) for group in groups]
    while left:
        made = run(engine, left, how)
        for uid, sample in made.items():
            tokens, logprobs, _, calls = found[uid]
            joined = tokens + sample.token_ids
            found[uid] = (joined, logprobs + sample.logprobs, sample.finish, calls + 1)
        left = [
            go_on(group, uid, found[uid][0])
            for group in groups
            for uid in group.uids
            if uid in made and made[uid].finish == "budget"
        ]
    return found


@pytest.mark.parametrize(
    "how",
    [
        sampling(greedy=True),
        sampling(temperature=0.8, top_k=30),
        sampling(stopped=lambda ids: sum(ids) % 13 == 0),
    ],
    ids=["greedy", "sampled", "stopped-by-text"],
)
def test_parts_by_the_same_weights_join_to_the_sample_of_one_part(
    how: Sampling, engine: RolloutEngine
) -> None:
    groups = make_groups()

    whole = run(engine, groups, how)
    parts = in_parts(engine, groups, how)

    assert parts.keys() == whole.keys()
    assert max(calls for *_, calls in parts.values()) == -(-how.max_response_length // BUDGET)
    for uid, (tokens, logprobs, finish, _) in parts.items():
        assert tokens == whole[uid].token_ids
        assert logprobs == pytest.approx(whole[uid].logprobs, abs=2e-5)
        assert finish == whole[uid].finish


def test_begun_and_fresh_samples_share_a_call_each_with_its_own_budget(
    engine: RolloutEngine,
) -> None:
    group = make_groups()[2]
    begun = replace(group, uids=["begun"], seeds=[1], begun=[9] * (PLAIN.max_response_length - 2))
    short = replace(group, uids=["short"], seeds=[2], budget=1)
    whole = replace(group, uids=["whole"], seeds=[3])

    found = run(engine, [begun, short, whole], sampling(eos_ids=()))

    assert {uid: (len(s.token_ids), s.finish) for uid, s in found.items()} == {
        "begun": (2, "length"),
        "short": (1, "budget"),
        "whole": (PLAIN.max_response_length, "length"),
    }


def test_logprobs_are_those_of_the_new_tokens_behind_what_was_begun(
    save_reference: SaveReference,
) -> None:
    reference, path = save_reference("llama")
    engine = TorchRollout(path, dtype=torch.float32, max_sequences=4, max_length=64)
    group = replace(make_groups()[0], begun=[11, 12, 13], budget=4)

    found: dict[str, Generated] = run(engine, [group])

    for sample in found.values():
        ids = torch.tensor([group.token_ids + group.begun + sample.token_ids])
        with torch.no_grad():
            logprobs = reference(ids).logits[0].log_softmax(-1)[len(group.prefix) - 1 : -1]
        expected = logprobs.gather(1, torch.tensor(sample.token_ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=2e-5, rtol=0)
