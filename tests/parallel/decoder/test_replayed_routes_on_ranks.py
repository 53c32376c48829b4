"""Recorded routes on ranks of every technique: loss, gradients and weights of one rank that has the same."""

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp  # once, not in every fork
from forked_ranks import on_ranks
from parallel_training import OneRank, grid_of, make_batch, shape_of, train_on
from reference_models import make_reference

from rljob_runtime.models.decoder import Decoder
from rljob_runtime.parallel.decoder.parameters import box_of, local_slices
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.samples.sample import SampleBatch

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "virtual stages, experts over data": (
        "qwen3-moe-deep", {"pipeline": 2, "virtual_pipeline": 2, "data": 2, "expert": 2},
    ),
    "ring, experts over context and tensor": (
        "deepseek-v3",
        {"tensor": 2, "context": 2, "expert": 2, "context_algorithm": "ring"},
    ),
    "tensor, experts by features, ZeRO 3": (
        "qwen3-moe-some-dense", {"tensor": 2, "data": 2, "zero": 3},
    ),
}  # fmt: skip


def routed(batch: SampleBatch, path: Path, seed: int) -> SampleBatch:
    """The batch with experts that no router chose; the prompts' of all their samples are alike."""
    experts, layers = shape_of(path).experts, range(shape_of(path).layers)
    assert experts is not None
    sparse = sum(map(experts.in_layer, layers))
    random = torch.Generator().manual_seed(seed)

    def drawn(tokens: int) -> torch.Tensor:
        score = torch.rand(tokens, sparse, experts.count, generator=random)
        return score.topk(experts.chosen).indices.to(torch.uint8)

    prompts = [drawn(len(prompt)) for prompt in batch.prompts]
    rows = [
        torch.cat([prompts[group], drawn(max(len(response) - 1, 0))]).flatten()
        for group, response in zip(batch.group_of_B.tolist(), batch.responses, strict=True)
    ]
    return replace(batch, routes=rows)


@pytest.mark.parametrize("case", CASES)
def test_ranks_learn_by_recorded_routes_what_one_rank_does(case: str, tmp_path: Path) -> None:
    family, degrees = CASES[case]
    make_reference(family).save_pretrained(tmp_path)
    grid, shape = grid_of(tmp_path, **degrees), shape_of(tmp_path)
    number = 3 * grid.degrees.data if grid.degrees.pipeline > 1 else 2
    batches = [routed(make_batch(seed), tmp_path, seed) for seed in range(1, 1 + number)]
    alone = OneRank(tmp_path, batches, Decoder.recompute_layers)

    def train(_: int) -> dict[str, Any]:
        groups = ProcessGroups(grid, timeout_seconds=60)
        return train_on(groups, tmp_path, batches, Decoder.recompute_layers)

    for rank, found in enumerate(on_ranks(grid.size, train, seconds=300)):
        held = local_slices(shape, grid, rank)
        assert found["losses"] == pytest.approx(alone.losses, rel=1e-5, abs=1e-5)
        seen = alone.seen[grid.coordinates(rank).data :: grid.degrees.data]
        for one, other in zip(chain(*found["seen"]), chain(*seen), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        for kind, expected in (("gradients", alone.gradients), ("weights", alone.weights)):
            for name, part in found[kind].items():
                largest = float(expected[name].abs().max())
                whole = expected[name][box_of(held[name])]
                bound = 1e-5 * max(1.0, largest)
                torch.testing.assert_close(part, whole, rtol=0, atol=bound, msg=f"{kind} {name}")
