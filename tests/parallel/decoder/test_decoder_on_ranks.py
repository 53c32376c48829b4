"""A decoder of every family on ranks of every technique: loss, gradients and weights of one rank."""

from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.fsdp  # once, not in every fork
from forked_ranks import on_ranks
from parallel_training import SETTINGS, OneRank, grid_of, make_batch, shape_of, train_on
from reference_models import make_reference
from torch import Tensor

from rljob_runtime.models.loading import load_decoder
from rljob_runtime.models.weights import save_hf
from rljob_runtime.parallel.decoder.parameters import box_of, full_weights, local_slices
from rljob_runtime.parallel.decoder.policy import load_parallel
from rljob_runtime.parallel.process_groups import ProcessGroups


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """save(family, layers=2): saves a family's random model, or so many of its layers."""

    def save(family: str, layers: int | None = None) -> Path:
        model = make_reference(family)
        if layers is not None:
            model.model.layers = model.model.layers[:layers]
            model.config.num_hidden_layers = layers
            if getattr(model.config, "layer_types", None):
                model.config.layer_types = model.config.layer_types[:layers]
        model.save_pretrained(tmp_path / "model")
        return tmp_path / "model"

    return save


RING = {"context_algorithm": "ring"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "tensor": ("qwen3", {"tensor": 2}),
    "tensor, tied, biases of queries": ("qwen2-tied", {"tensor": 2}),
    "tensor, biases everywhere": ("llama-biased", {"tensor": 2}),
    "tensor, fewer key heads than ranks": ("qwen3-tied", {"tensor": 4}),
    "tensor, latent attention, shared experts": ("deepseek-v3", {"tensor": 2}),
    "tensor, whole queries": ("deepseek-v2-whole-queries", {"tensor": 2}),
    "tensor, experts of odd widths": ("qwen3-moe-odd-sizes", {"tensor": 2}),
    "context": ("qwen3", {"context": 2}),
    "context, repeated key heads": ("qwen2", {"context": 4}),
    "context, latent attention": ("deepseek-v2", {"context": 2}),
    "ring": ("qwen3", {"context": 3} | RING),
    "ring, latent attention, experts over context": (
        "deepseek-v3", {"context": 2, "expert": 2} | RING,
    ),
    "ring, tensor, data, experts over both": (
        "qwen3-moe-some-dense", {"tensor": 2, "context": 2, "data": 2, "expert": 4} | RING,
    ),
    "ring, tensor, fewer key heads than ranks, ZeRO 2": (
        "qwen3-tied", {"tensor": 4, "context": 2, "zero": 2} | RING,
    ),
    "pipeline, uneven layers, tied": ("qwen2-tied", {"pipeline": 2}),
    "pipeline of three": ("llama-biased", {"pipeline": 3}),
    "virtual stages, uneven layers, tied, data, ZeRO 1": (
        "qwen3-deep-tied", {"pipeline": 2, "virtual_pipeline": 2, "data": 2, "zero": 1},
    ),
    "virtual stages, tensor, experts over data, ZeRO 2": (
        "qwen3-moe-deep",
        {"pipeline": 2, "virtual_pipeline": 2, "tensor": 2, "data": 2, "expert": 2, "zero": 2},
    ),
    "pipeline, tensor, ring": ("qwen3-tied", {"pipeline": 2, "tensor": 2, "context": 2} | RING),
    "pipeline, Ulysses, data, tied, ZeRO 2": (
        "qwen2-tied", {"pipeline": 2, "context": 2, "data": 2, "zero": 2},
    ),
    "pipeline, experts over context, latent attention": (
        "deepseek-v3", {"pipeline": 2, "context": 2, "expert": 2},
    ),
    "ZeRO 3": ("qwen2-tied", {"data": 2, "zero": 3}),
    "ZeRO 3, tensor, odd experts": (
        "qwen3-moe-odd-sizes", {"data": 2, "tensor": 2, "zero": 3},
    ),
    "ZeRO 3, tensor, ring, data": (
        "llama-biased", {"data": 2, "context": 2, "tensor": 2, "zero": 3} | RING,
    ),
    "experts over data": ("qwen3-moe", {"data": 2, "expert": 2}),
    "experts over context": ("deepseek-v3", {"context": 2, "expert": 2}),
    "tensor, context": ("qwen3-tied", {"tensor": 2, "context": 2}),
    "tensor, experts over data": ("deepseek-v2-grouped", {"tensor": 2, "data": 2, "expert": 2}),
    "tensor, repeated heads, experts over data": (
        "qwen3-moe-some-dense", {"tensor": 4, "data": 2, "expert": 2, "zero": 1},
    ),
    "tensor, context, data, experts over both": (
        "qwen3-moe", {"tensor": 2, "context": 2, "data": 2, "expert": 4, "zero": 2},
    ),
    "data, ZeRO 1": ("qwen2-tied", {"data": 2, "zero": 1}),
    "tensor, data, ZeRO 2": ("llama-biased", {"tensor": 2, "data": 2, "zero": 2}),
}  # fmt: skip


BOUND = 1e-5
"""Of the largest value of a tensor, where that is above 1: float32 rounds the terms of a sum, each by 6e-8 of
itself, a few dozen of them one after the other; what cancels takes none of that error with it."""


def assert_near(found: Tensor, expected: Tensor, what: str) -> None:
    largest = float(expected.detach().abs().max()) if expected.numel() else 0.0
    bound = BOUND * max(1.0, largest)
    torch.testing.assert_close(found, expected, rtol=0, atol=bound, msg=lambda m: f"{what}: {m}")


@pytest.mark.parametrize("case", CASES)
def test_loss_gradients_and_trained_weights_are_one_ranks(
    case: str, save: Callable[..., Path]
) -> None:
    family, degrees = CASES[case]
    path = save(family, layers=None if "pipeline" in degrees else 2)
    grid, shape = grid_of(path, **degrees), shape_of(path)
    micro_batches = 3 * grid.degrees.data if grid.degrees.pipeline > 1 else 2
    batches = [make_batch(seed) for seed in range(1, 1 + micro_batches)]
    alone = OneRank(path, batches)
    assert alone.norms[0] > SETTINGS.gradient_clip

    ranks = on_ranks(
        grid.size,
        lambda _: train_on(ProcessGroups(grid, timeout_seconds=60), path, batches),
        seconds=120,
    )

    for rank, found in enumerate(ranks):
        held = local_slices(shape, grid, rank)
        assert found["losses"] == pytest.approx(alone.losses, rel=BOUND, abs=BOUND)
        seen = alone.seen[grid.coordinates(rank).data :: grid.degrees.data]
        for one, other in zip(chain(*found["seen"]), chain(*seen), strict=True):
            assert_near(one, other, "entropies or experts' tokens")
        assert found["norms"] == pytest.approx(alone.norms, rel=1e-5)
        assert set(found["gradients"]) == set(held) & set(alone.gradients)
        for kind, expected in (("gradients", alone.gradients), ("weights", alone.weights)):
            for name, part in found[kind].items():
                whole = expected[name][box_of(held[name])]
                assert_near(part, whole, f"{kind} {name}")


@pytest.mark.parametrize("family", ["qwen2-tied", "deepseek-v3"])
@pytest.mark.parametrize(
    "degrees",
    [
        {"tensor": 4},
        {"tensor": 2, "data": 2, "expert": 2},
        {"pipeline": 3, "data": 2, "expert": 2},
        {"data": 2, "tensor": 2, "zero": 3},
    ],
)
def test_what_ranks_save_is_bitwise_what_they_loaded(
    family: str, degrees: dict[str, Any], save: Callable[[str], Path], tmp_path: Path
) -> None:
    path = save(family)
    if family == "qwen2-tied" and "expert" in degrees:
        degrees = degrees | {"expert": 1}
    grid, shape = grid_of(path, **degrees), shape_of(path)

    def save_whole(rank: int) -> None:
        groups = ProcessGroups(grid, timeout_seconds=60)
        model = load_parallel(path, groups, dtype=torch.float32)
        save_hf(full_weights(model, shape, groups), folder=tmp_path / str(rank), source=path)

    on_ranks(grid.size, save_whole, seconds=60)

    loaded = load_decoder(path, dtype=torch.float32)
    save_hf(loaded.named_hf_parameters(), folder=tmp_path / "alone", source=path)
    expected = (tmp_path / "alone" / "model.safetensors").read_bytes()
    for rank in range(grid.size):
        assert (tmp_path / str(rank) / "model.safetensors").read_bytes() == expected
