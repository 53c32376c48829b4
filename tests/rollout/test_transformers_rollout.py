"""The fallback engine: the same tokens as the torch engine where both compute the model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rollouts import make_groups, run, sampling

from rljob_runtime.rollout.rollout_torch import TorchRollout, make_torch_rollout
from rljob_runtime.rollout.rollout_transformers import TransformersRollout

SaveReference = Callable[..., tuple[Any, Path]]


@pytest.mark.parametrize("rows", [64, 6])
def test_tokens_and_logprobs_equal_the_torch_engines(
    rows: int, save_reference: SaveReference
) -> None:
    path = save_reference("qwen3")[1]
    arguments: Any = {"dtype": torch.float32, "max_sequences": rows, "max_length": 64}
    groups = make_groups()

    found = run(TransformersRollout(path, **arguments), groups, sampling(top_k=30))

    expected = run(TorchRollout(path, **arguments), groups, sampling(top_k=30))
    assert found.keys() == expected.keys()
    for uid, sample in found.items():
        assert sample.token_ids == expected[uid].token_ids
        assert sample.finish == expected[uid].finish
        assert sample.logprobs == pytest.approx(expected[uid].logprobs, abs=2e-5)


def test_it_is_chosen_for_other_models(save_reference: SaveReference) -> None:
    path = save_reference("llama-rope-longrope")[1]

    engine = make_torch_rollout(path, dtype=torch.float32, max_sequences=6, max_length=64)

    assert isinstance(engine, TransformersRollout)
    found = run(engine, make_groups(), sampling(stopped=lambda ids: len(ids) == 5))
    assert max(len(sample.token_ids) for sample in found.values()) == 5
