"""Samples with pictures on ranks that share the decoder: loss, gradients and weights of one rank."""

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp  # once, not in every fork
from forked_ranks import on_ranks
from parallel_training import SETTINGS, OneRank, grid_of, shape_of, train_on
from safetensors.torch import load_file
from torch import Tensor
from vision_models import make_pictured_batch, make_vision_reference

from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.tower import VisionTower
from rljob_runtime.models.weights import save_hf
from rljob_runtime.parallel.decoder.parameters import box_of, local_slices
from rljob_runtime.parallel.decoder.policy import load_parallel
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.weights.held_policy import ShardedPolicy

RING = {"context_algorithm": "ring"}
FROZEN, TRAINED = False, True
CASES: dict[str, tuple[str, bool, dict[str, Any]]] = {
    "tensor": ("qwen3-vl", FROZEN, {"tensor": 2}),
    "tensor, tied, trained": ("qwen2.5-vl-tied", TRAINED, {"tensor": 2}),
    "context": ("qwen3-vl", FROZEN, {"context": 2}),
    "ring": ("qwen2.5-vl", FROZEN, {"context": 2} | RING),
    "tensor, ring, trained": ("qwen3-vl", TRAINED, {"tensor": 2, "context": 2} | RING),
    "a stage a layer, some of which get something added, trained": (
        "qwen3-vl", TRAINED, {"pipeline": 3},
    ),
    "virtual stages, tied, tensor": (
        "qwen3-vl-tied", FROZEN, {"pipeline": 2, "virtual_pipeline": 2, "tensor": 2},
    ),
    "pipeline, context, trained, ZeRO 2": (
        "qwen2.5-vl-tied", TRAINED, {"pipeline": 2, "context": 2, "zero": 2},
    ),
    "data, ZeRO 1, trained": ("qwen3-vl", TRAINED, {"data": 2, "zero": 1}),
    "ZeRO 3": ("qwen3-vl-tied", FROZEN, {"data": 2, "zero": 3}),
    "ZeRO 3, tensor, trained": ("qwen2.5-vl", TRAINED, {"data": 2, "tensor": 2, "zero": 3}),
}  # fmt: skip
BOUND = 1e-5


def assert_near(found: Tensor, expected: Tensor, what: str) -> None:
    bound = BOUND * max(1.0, float(expected.detach().abs().max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=bound, msg=lambda m: f"{what}: {m}")


@pytest.mark.parametrize("case", CASES)
def test_loss_gradients_and_trained_weights_are_one_ranks(case: str, tmp_path: Path) -> None:
    family, trained, degrees = CASES[case]
    path = tmp_path / "model"
    make_vision_reference(family).save_pretrained(path)
    grid, shape = replace(grid_of(path, **degrees), tower=trained), shape_of(path)
    batches = [make_pictured_batch(seed) for seed in range(1, 1 + 2 * grid.degrees.data)]

    def show(model: Decoder) -> None:
        model.show(VisionTower.from_path(path, dtype=torch.float32, trained=trained))

    alone = OneRank(path, batches, show)
    assert alone.norms[0] > SETTINGS.gradient_clip
    ranks = on_ranks(
        grid.size,
        lambda _: train_on(ProcessGroups(grid, timeout_seconds=60), path, batches, show),
        seconds=120,
    )

    tower = {name for name in alone.gradients if name.startswith("visual.")}
    assert bool(tower) == trained
    for name in tower:  # of whatever layout, the same bits
        weights = [found["weights"][name] for found in ranks]
        assert all(weight.equal(weights[0]) for weight in weights)
    for rank, found in enumerate(ranks):
        held = local_slices(shape, grid, rank)
        assert found["losses"] == pytest.approx(alone.losses, rel=BOUND, abs=BOUND)
        assert found["norms"] == pytest.approx(alone.norms, rel=1e-5)
        seen = alone.seen[grid.coordinates(rank).data :: grid.degrees.data]
        for one, other in zip(chain(*found["seen"]), chain(*seen), strict=True):
            assert_near(one, other, "entropies")
        assert tower | set(held) <= set(found["gradients"])
        for kind, expected in (("gradients", alone.gradients), ("weights", alone.weights)):
            for name, part in found[kind].items():
                if name in expected:  # not a tower's constants, nor what no picture reads
                    whole = expected[name]
                    whole = whole if name.startswith("visual.") else whole[box_of(held[name])]
                    assert_near(part, whole, f"{kind} {name}")


def test_what_ranks_save_has_the_tower_that_they_train(tmp_path: Path) -> None:
    path = tmp_path / "model"
    make_vision_reference("qwen3-vl-tied").save_pretrained(path)
    grid, shape = grid_of(path, tensor=2, pipeline=2), shape_of(path)

    def save_whole(rank: int) -> list[str]:
        groups = ProcessGroups(grid, timeout_seconds=60)
        model = load_parallel(path, groups, dtype=torch.float32)
        model.show(VisionTower.from_path(path, dtype=torch.float32, trained=True))
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(2.0)
        held = ShardedPolicy(model=model, shape=shape, groups=groups)
        whole = dict(held.full_weights())
        assert {n: w.shape for n, w in whole.items()} == {
            n: w.shape for n, w in held.outlines().items()
        }
        save_hf(whole.items(), folder=tmp_path / str(rank), source=path)
        return list(held.spans())

    spans = on_ranks(grid.size, save_whole, seconds=60)

    assert all(any(name.startswith("visual.") for name in names) for names in spans)
    before = load_file(path / "model.safetensors")
    for rank in range(grid.size):
        saved = load_file(tmp_path / str(rank) / "model.safetensors")
        assert saved.keys() == before.keys()
        assert all(saved[name].equal(2.0 * weight) for name, weight in before.items())
    assert isinstance(load_decoder(tmp_path / "0", dtype=torch.float32), Decoder)
