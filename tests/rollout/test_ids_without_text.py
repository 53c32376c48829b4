"""Ids beyond the tokenizer's, which models have for the sake of their size, are drawn by no engine."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from forked_ranks import on_ranks
from rollouts import make_groups, run, sampling
from rollouts_on_ranks import ARGUMENTS, engine_on_rank, grid_of

from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup
from rljob_runtime.rollout.rollout_torch import TorchRollout
from rljob_runtime.rollout.rollout_transformers import TransformersRollout

TEXT_IDS = 40
"""Of 71. Of four ranks, which have 18 ids each, the third has 4 of them and the last none."""
PROMPTS = [[7, 9, 11], [38, 39, 1, 2]]
HOW = {
    "at temperature 1": sampling(),
    "at another temperature": sampling(temperature=0.6),
    "greedy": sampling(greedy=True),
    "of the likeliest": sampling(top_k=30, top_p=0.9),
}


def assert_of_text(
    reference: Any, groups: Sequence[PromptGroup], made: Mapping[str, Generated], how: Any
) -> None:
    """All tokens are below TEXT_IDS, and their log-probs those of the model without the other ids."""
    prompts = {uid: group.token_ids for group in groups for uid in group.uids}
    assert made.keys() == prompts.keys()
    for uid, sample in made.items():
        assert max(sample.token_ids) < TEXT_IDS
        ids = torch.tensor([prompts[uid] + sample.token_ids])
        with torch.inference_mode():
            logits = reference(ids[:, :-1]).logits[0, len(prompts[uid]) - 1 :, :TEXT_IDS]
        expected = (logits / how.temperature).log_softmax(-1)
        expected = expected[torch.arange(len(logits)), torch.tensor(sample.token_ids)]
        torch.testing.assert_close(torch.tensor(sample.logprobs), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", HOW.values(), ids=HOW)
@pytest.mark.parametrize("kind", [TorchRollout, TransformersRollout])
def test_an_engine_draws_ids_with_text(kind: Any, how: Any, save_reference) -> None:
    reference, path = save_reference("qwen3")

    engine = kind(path, **ARGUMENTS, text_ids=TEXT_IDS)

    groups = make_groups((5, 1, 17))
    assert_of_text(reference.eval(), groups, run(engine, groups, how), how)
    assert_probed(reference, engine.token_logprobs([prompt[:3] for prompt in PROMPTS]))


def assert_probed(reference: Any, found: list[list[float]]) -> None:
    ids = torch.tensor([prompt[:3] for prompt in PROMPTS])
    with torch.inference_mode():
        expected = reference(ids[:, :-1]).logits[..., :TEXT_IDS].log_softmax(-1)
    expected = expected.gather(-1, ids[:, 1:, None])[..., 0]
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("degrees", [{"tensor": 4}, {"tensor": 2, "pipeline": 2}], ids=str)
def test_ranks_that_share_a_vocabulary_draw_ids_with_text(
    degrees: dict[str, int], save_reference
) -> None:
    reference, path = save_reference("llama")
    groups = make_groups((5, 1))

    def device(rank: int) -> tuple[list[dict[str, Generated]], list[list[float]]]:
        engine = engine_on_rank(path, grid_of(**degrees), text_ids=TEXT_IDS)
        made = [run(engine, groups, how) for how in HOW.values()]
        return made, engine.token_logprobs([prompt[:3] for prompt in PROMPTS])

    made, probed = on_ranks(4, device)[0]
    for found, how in zip(made, HOW.values(), strict=True):
        assert_of_text(reference.eval(), groups, found, how)
    assert_probed(reference, probed)


def test_the_model_that_is_asked_has_ids_without_text(save_reference) -> None:
    _, path = save_reference("qwen3")

    made = run(TorchRollout(path, **ARGUMENTS), make_groups((5, 1, 17)), sampling())

    assert max(max(sample.token_ids) for sample in made.values()) >= TEXT_IDS
