"""Micro-batches through a pipeline: all of its ranks know what the last stage found."""

from pathlib import Path

import torch
from forked_ranks import on_ranks
from parallel_training import TEMPERATURE, grid_of, make_batch, said_of
from reference_models import make_reference

from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.policy_model import TokenLogprobs
from rljob_runtime.parallel.decoder.pipeline_passes import run_micro_batches
from rljob_runtime.parallel.decoder.policy import load_parallel
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.update.accumulation import NO_SAMPLES


def test_scoring_tells_all_ranks_what_one_rank_finds(tmp_path: Path) -> None:
    make_reference("qwen3-moe-deep").save_pretrained(tmp_path)
    grid = grid_of(tmp_path, pipeline=2, virtual_pipeline=2, tensor=2)
    batches = [make_batch(1), NO_SAMPLES, make_batch(2), make_batch(3)]

    def score(_: int) -> list[list[torch.Tensor]]:
        groups = ProcessGroups(grid, timeout_seconds=60)
        model = load_parallel(tmp_path, groups, dtype=torch.float32)
        found = run_micro_batches(model, groups, batches, temperature=TEMPERATURE)
        assert not any(parameter.grad is not None for parameter in model.parameters())
        return [tensors_of(said) for said in found]

    ranks = on_ranks(grid.size, score, seconds=120)

    alone = load_decoder(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        expected = [tensors_of(said_of(alone, batch)) for batch in batches]
    assert [len(logprobs_T) for logprobs_T, *_ in expected] == [b.num_tokens for b in batches]
    for found in ranks:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def tensors_of(said: TokenLogprobs) -> list[torch.Tensor]:
    assert said.entropy_T is not None and said.router_load is not None
    load = said.router_load
    return [said.logprobs_T, said.entropy_T, load.tokens_ME(), load.balance_loss()]
