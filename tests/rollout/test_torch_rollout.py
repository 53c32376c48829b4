"""The torch engine's tokens and log-probs: against transformers, and against itself."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_models import FAMILIES
from rollouts import make_groups, run, sampling
from transformers import GenerationConfig

from rljob_runtime.errors import ConfigError
from rljob_runtime.models.loading import load_policy
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.samples.sample import SampleBatch

MakeEngine = Callable[..., TorchRollout]
SaveReference = Callable[..., tuple[Any, Path]]
RAGGED = sampling(temperature=0.8, max_response_length=12, eos_ids=tuple(range(3, 12)))
"""Few tokens, and yet every so many responses end at the limit and every so many before."""


def teacher_forced(
    reference: Any, groups: list[PromptGroup], sample: Generated, temperature: float
) -> torch.Tensor:
    prompt = next(group.token_ids for group in groups if sample.uid in group.uids)
    with torch.no_grad():
        logits = reference(torch.tensor([prompt + sample.token_ids])).logits[0] / temperature
    logprobs = logits.log_softmax(-1)[len(prompt) - 1 : -1]
    return logprobs.gather(1, torch.tensor(sample.token_ids)[:, None])[:, 0]


def tokens_of(found: dict[str, Generated]) -> dict[str, list[int]]:
    return {uid: sample.token_ids for uid, sample in found.items()}


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("rows", [64, 4])
def test_logprobs_equal_transformers_on_ragged_prompts(
    family: str, rows: int, save_reference: SaveReference
) -> None:
    reference, path = save_reference(family)
    engine = TorchRollout(path, dtype=torch.float32, max_sequences=rows, max_length=64)
    groups = make_groups(samples=2)

    found = run(engine, groups, RAGGED)

    assert sorted(found) == sorted(uid for group in groups for uid in group.uids)
    assert len({len(sample.token_ids) for sample in found.values()}) > 1
    for sample in found.values():
        expected = teacher_forced(reference, groups, sample, 0.8)
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("rows", [1, 3, 7, 19])
def test_fewer_rows_than_samples_give_the_same_tokens(rows: int, make_engine: MakeEngine) -> None:
    many, few = make_engine(), make_engine(max_sequences=rows)
    groups = make_groups()

    expected, found = run(many, groups), run(few, groups)

    assert tokens_of(found) == tokens_of(expected)
    for uid, sample in found.items():
        assert sample.logprobs == pytest.approx(expected[uid].logprobs, abs=1e-5)
        assert sample.finish == expected[uid].finish


def test_prompts_over_several_prefills_give_the_same_tokens(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, groups = make_engine(), make_groups()
    expected = tokens_of(run(engine, groups))
    monkeypatch.setattr("rljob_runtime.rollout.waiting.PREFILL_TOKENS", 12)

    assert tokens_of(run(engine, groups)) == expected


@pytest.mark.parametrize("rows", [64, 5])
def test_two_runs_are_bitwise_the_same(rows: int, make_engine: MakeEngine) -> None:
    engine, groups = make_engine(max_sequences=rows), make_groups()

    first = list(engine.generate(groups, sampling()))
    second = list(engine.generate(groups, sampling()))

    assert first == second


def test_a_sample_does_not_depend_on_the_rest_of_the_batch(make_engine: MakeEngine) -> None:
    engine, groups = make_engine(), make_groups()
    together = tokens_of(run(engine, groups))

    for group in groups:
        for uid, seed in zip(group.uids, group.seeds, strict=True):
            single = PromptGroup(
                group=group.group, token_ids=group.token_ids, uids=[uid], seeds=[seed]
            )
            assert run(engine, [single])[uid].token_ids == together[uid]


def test_samples_of_a_group_differ_by_their_seeds(make_engine: MakeEngine) -> None:
    engine = make_engine()
    group = make_groups([5], samples=2)[0]
    same = PromptGroup(group="0", token_ids=group.token_ids, uids=["a", "b"], seeds=[7, 7])

    different, equal = run(engine, [group]), run(engine, [same])

    assert different["0/0"].token_ids != different["0/1"].token_ids
    assert equal["a"].token_ids == equal["b"].token_ids


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "mistral",
        "qwen2",
        "qwen3-rope-yarn",
        "qwen3-moe",
        "deepseek-v2-grouped",
        "deepseek-v3",
        "deepseek-v3-rope-yarn",
    ],
)
def test_greedy_equals_transformers_generate(family: str, save_reference: SaveReference) -> None:
    reference, path = save_reference(family)
    engine = TorchRollout(path, dtype=torch.float32, max_sequences=4, max_length=64)
    groups = make_groups(samples=1)
    config = GenerationConfig(
        do_sample=False, max_new_tokens=24, eos_token_id=[3, 4], pad_token_id=0
    )

    found = run(engine, groups, sampling(greedy=True))

    for group in groups:
        prompt = torch.tensor([group.token_ids])
        with torch.no_grad():
            expected = reference.generate(
                prompt, attention_mask=torch.ones_like(prompt), generation_config=config
            )
        assert found[group.uids[0]].token_ids == expected[0, len(group.token_ids) :].tolist()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_logprobs_equal_those_of_the_update_model(
    family: str, save_reference: SaveReference
) -> None:
    _, path = save_reference(family)
    engine = TorchRollout(path, dtype=torch.float32, max_sequences=8, max_length=64)
    groups = make_groups(samples=2)

    found = run(engine, groups, RAGGED)

    samples = [(g, found[uid]) for g, group in enumerate(groups) for uid in group.uids]
    batch = SampleBatch(
        prompts=[torch.tensor(group.token_ids) for group in groups],
        group_of_B=torch.tensor([g for g, _ in samples]),
        responses=[torch.tensor(sample.token_ids) for _, sample in samples],
    )
    policy = load_policy(path, dtype=torch.float32)
    expected_T = policy.logprobs(batch, temperature=0.8).logprobs_T.detach()
    drawn_T = torch.tensor([value for _, sample in samples for value in sample.logprobs])
    torch.testing.assert_close(drawn_T, expected_T, atol=1e-4, rtol=0)


def test_positions_that_the_model_cannot_have_are_named(save_reference: SaveReference) -> None:
    _, path = save_reference("llama-rope-dynamic")

    with pytest.raises(ConfigError, match="257 tokens is longer than max_position_embeddings=256"):
        TorchRollout(path, dtype=torch.float32, max_sequences=2, max_length=257)


def test_responses_end_with_an_end_token_or_at_the_limit(make_engine: MakeEngine) -> None:
    found = run(make_engine(), make_groups(samples=8), sampling(max_response_length=9))

    for sample in found.values():
        assert sample.token_ids and len(sample.token_ids) == len(sample.logprobs)
        assert not {3, 4} & set(sample.token_ids[:-1])
        if sample.finish == "stop":
            assert sample.token_ids[-1] in (3, 4)
        else:
            assert len(sample.token_ids) == 9
    assert {sample.finish for sample in found.values()} == {"stop", "length"}


def test_one_token_responses_need_no_decoding(make_engine: MakeEngine) -> None:
    found = run(make_engine(max_sequences=3), make_groups(), sampling(max_response_length=1))

    assert all(len(sample.token_ids) == 1 for sample in found.values())


def test_no_end_tokens_means_full_length(make_engine: MakeEngine) -> None:
    found = run(make_engine(), make_groups(), sampling(eos_ids=()))

    assert {len(sample.token_ids) for sample in found.values()} == {24}


def test_the_callers_test_ends_a_response(make_engine: MakeEngine) -> None:
    engine, groups = make_engine(max_sequences=6), make_groups()
    free = run(engine, groups, sampling(eos_ids=()))
    seen: list[list[int]] = []

    def stopped(ids: list[int]) -> bool:
        seen.append(list(ids))
        return sum(ids) > 300

    found = run(engine, groups, sampling(eos_ids=(), stopped=stopped))

    for uid, sample in found.items():
        whole = free[uid].token_ids
        ends = (n for n in range(1, len(whole) + 1) if sum(whole[:n]) > 300)
        assert sample.token_ids == whole[: next(ends, len(whole))]
        assert sample.finish == ("stop" if sum(sample.token_ids) > 300 else "length")
    assert len(seen) == sum(len(sample.token_ids) for sample in found.values())


def test_finished_samples_come_before_the_last_one_ends(make_engine: MakeEngine) -> None:
    engine, groups = make_engine(max_sequences=8), make_groups()

    chunks = list(engine.generate(groups, sampling()))

    assert len(chunks) > 3
    assert all(chunks)


def test_leaving_early_leaves_a_usable_engine(make_engine: MakeEngine) -> None:
    engine, groups = make_engine(max_sequences=4), make_groups()
    expected = run(engine, groups)

    next(iter(engine.generate(groups, sampling())))

    assert run(engine, groups) == expected


def test_sleep_frees_the_cache_and_wake_makes_it_again(make_engine: MakeEngine) -> None:
    engine, groups = make_engine(), make_groups()
    expected = run(engine, groups)

    engine.sleep()

    with pytest.raises(AssertionError, match="wake the engine"):
        next(iter(engine.generate(groups, sampling())))
    engine.wake()
    assert run(engine, groups) == expected


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (PromptGroup(group="7", token_ids=[], uids=["a"], seeds=[1]), "group 7 has no tokens"),
        (
            PromptGroup(group="7", token_ids=[9] * 41, uids=["a"], seeds=[1]),
            r"prompt of 41 tokens \(group 7\) and a response of up to 24 do not fit 64 positions",
        ),
    ],
)
def test_prompts_that_do_not_fit_are_named(
    group: PromptGroup, message: str, make_engine: MakeEngine
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(make_engine(), [group])


def test_a_prompt_that_just_fits_is_generated(make_engine: MakeEngine) -> None:
    group = PromptGroup(group="7", token_ids=[9] * 40, uids=["a"], seeds=[1])

    found = run(make_engine(), [group], sampling(eos_ids=()))

    assert len(found["a"].token_ids) == 24


@pytest.mark.parametrize("shared_prompts", [False, True])
def test_bfloat16_stays_close_to_float32(
    shared_prompts: bool, save_reference: SaveReference, monkeypatch: pytest.MonkeyPatch
) -> None:
    threshold = 0 if shared_prompts else 2**40
    monkeypatch.setattr("rljob_runtime.rollout.cache_layout.SHARE_FROM_BYTES", threshold)
    reference, path = save_reference("qwen3")
    engine = TorchRollout(path, dtype=torch.bfloat16, max_sequences=8, max_length=64)
    groups = make_groups()

    found = run(engine, groups)

    gaps = torch.cat(
        [
            torch.tensor(sample.logprobs) - teacher_forced(reference, groups, sample, 1.0)
            for sample in found.values()
        ]
    )
    assert gaps.abs().mean() < 0.05
