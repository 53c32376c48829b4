"""A critic on ranks of every technique: values, metrics and trained weights of one rank."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp  # once, not in every fork
from forked_ranks import on_ranks
from parallel_training import SETTINGS, grid_of, make_batch
from reference_models import make_reference
from shared_steps import ranks_of

from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.algorithms.values import value_loss
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.update.update_torch import TorchUpdateEngine
from rljob_runtime.weights.held_policy import load_local_policy

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tensor": ("qwen2-tied", {"tensor": 2}),
    "tensor, context, data": ("qwen3", {"tensor": 2, "context": 2, "data": 2}),
    "ring, ZeRO 1": ("qwen3-tied", {"context": 3, "context_algorithm": "ring", "zero": 1}),
    "pipeline, tensor": ("qwen2-tied", {"pipeline": 2, "tensor": 2}),
    "pipeline, data, ZeRO 2": ("llama-biased", {"pipeline": 2, "data": 2, "zero": 2}),
    "tensor, data, ZeRO 3": ("qwen3-tied", {"data": 2, "tensor": 2, "zero": 3}),
    "experts over data": ("qwen3-moe", {"data": 2, "expert": 2}),
}


def loss(values_T: torch.Tensor, batch: SampleBatch, totals: Totals) -> LossOutput:
    return value_loss(values_T, batch, totals, clip=0.2)


def batch_of(seed: int) -> SampleBatch:
    batch = make_batch(seed)
    values = [row + 4 for row in batch.fields["old_logprobs"]]
    batch.fields.update(values=values, returns=[row.cos() for row in values])
    return batch


def learn(path: Path, ranks: UpdateRanks) -> tuple[Any, list[dict[str, float]], Any]:
    held = load_local_policy(path, ranks, dtype=torch.float32, scores=True)
    engine = TorchUpdateEngine(
        held.model,
        optimizer=SETTINGS,
        total_steps=2,
        temperature=1.0,
        ranks=ranks,
        purposes=held.purposes,
    )
    replica, replicas = ranks.share
    metrics = []
    for step in range(2):
        own = [batch_of(2 * step), batch_of(2 * step + 1)][replica::replicas]
        metrics.append(engine.train(own, loss, groups_with_signal=len(own)))
    weights = {name: weight.clone() for name, weight in held.full_weights()}
    return engine.logprobs(batch_of(9)), metrics, weights


@pytest.mark.parametrize("case", CASES)
def test_a_critic_learns_on_ranks_what_it_does_on_one(case: str, tmp_path: Path) -> None:
    family, degrees = CASES[case]
    make_reference(family).save_pretrained(tmp_path)
    grid = grid_of(tmp_path, **degrees)
    values, metrics, weights = learn(tmp_path, UpdateRanks())
    assert weights["score.weight"].abs().min() > 0

    found = on_ranks(grid.size, lambda _: learn(tmp_path, ranks_of(grid)), seconds=300)

    for theirs, measured, held in found:
        torch.testing.assert_close(theirs, values, rtol=1e-4, atol=1e-5)
        for step, alone in zip(measured, metrics, strict=True):
            assert step == pytest.approx(alone, rel=1e-4, abs=1e-5)
        assert held.keys() == weights.keys()
        for name, weight in held.items():
            torch.testing.assert_close(weight, weights[name], rtol=1e-5, atol=1e-5, msg=name)
