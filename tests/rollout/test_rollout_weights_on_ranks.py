"""Weights of an engine on ranks: each holds its slices, and all tell what the whole model is."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import on_ranks
from reference_models import make_reference
from rollouts import make_groups, run, sampling
from rollouts_on_ranks import ARGUMENTS, engine_on_rank, grid_of

from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.errors import WeightsError
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.weights import weights_checksum
from rljob_runtime.rollout.rollout_torch import TorchRollout

SaveReference = Callable[..., tuple[Any, Path]]
SHORT = sampling(max_response_length=10)
LAYOUTS = [
    ("qwen2-tied", {"tensor": 4}),
    ("qwen3-tied", {"tensor": 2, "pipeline": 2}),
    ("deepseek-v3", {"tensor": 2}),
    ("deepseek-v3", {"data": 2, "tensor": 2, "expert": 4}),
]


@pytest.mark.parametrize(
    ("family", "degrees", "dtype"),
    [
        *((*layout, torch.float32) for layout in LAYOUTS),
        ("qwen2-tied", {"tensor": 2}, torch.bfloat16),
        ("deepseek-v3", {"tensor": 2}, torch.bfloat16),
    ],
)
def test_checksums_before_and_after_new_weights_are_the_whole_policys(
    family: str, degrees: dict[str, int], dtype: torch.dtype, save_reference: SaveReference
) -> None:
    path, other = save_reference(family)[1], save_reference(family, seed=5)[1]
    loaded, fresh = (load_policy(p, dtype=torch.float32) for p in (path, other))
    grid = grid_of(**degrees)

    def checksums(_: int) -> tuple[str, str]:
        engine = engine_on_rank(path, grid, dtype=dtype)
        before = engine.checksum()
        engine.load_weights(fresh.named_hf_parameters(), version=3)
        return before, engine.checksum()

    expected = tuple(
        weights_checksum(p.named_hf_parameters(), dtype=dtype) for p in (loaded, fresh)
    )
    assert on_ranks(grid.size, checksums) == [expected] * grid.size


def test_new_weights_give_one_ranks_output_and_their_version(save_reference: SaveReference) -> None:
    path, groups = save_reference("qwen3")[1], make_groups(samples=2)
    other = dict(make_reference("qwen3", seed=5).named_parameters())
    alone = TorchRollout(path, **ARGUMENTS)
    alone.load_weights(other.items(), version=7)
    expected = {uid: sample.token_ids for uid, sample in run(alone, groups, SHORT).items()}

    def generate(_: int) -> Any:
        engine = engine_on_rank(path, grid_of(tensor=2))
        engine.load_weights(other.items(), version=7)
        return run(engine, groups, SHORT)

    for found in on_ranks(2, generate):
        assert {uid: sample.token_ids for uid, sample in found.items()} == expected
        assert {sample.version for sample in found.values()} == {7}


def test_wrong_weights_are_named_with_whole_shapes_and_change_nothing(
    save_reference: SaveReference,
) -> None:
    reference, path = save_reference("llama")
    weights = dict(reference.named_parameters())
    del weights["model.norm.weight"]
    weights["lm_head.weight"], weights["more"] = torch.zeros(3), torch.zeros(1)

    def told(_: int) -> tuple[str, bool]:
        engine = engine_on_rank(path, grid_of(tensor=2))
        before = engine.checksum()
        with pytest.raises(WeightsError) as caught:
            engine.load_weights(weights.items(), version=1)
        return str(caught.value), engine.checksum() == before and engine.version == 0

    for message, fixed_fields_rule in on_ranks(2, told):
        assert fixed_fields_rule
        for part in (
            "model.norm.weight is missing",
            "lm_head.weight is [3], not [71, 32]",
            "more is not expected",
        ):
            assert part in message


def test_ranks_hold_their_slices_alone(save_reference: SaveReference) -> None:
    path, grid = save_reference("qwen3-moe")[1], grid_of(tensor=2, expert=2)

    def held(rank: int) -> int:
        ledger = MemoryLedger(device=f"cpu:{rank}")
        engine_on_rank(path, grid, ledger=ledger)
        return ledger.report().kind_peak_bytes[MemoryKind.ROLLOUT_WEIGHTS]

    policy = load_policy(path, dtype=torch.float32)
    whole = ("norm", "gate.weight")  # of a layer, and its router
    sizes = [
        weight.nbytes / (1 if any(part in name for part in whole) else 2)
        for name, weight in policy.named_hf_parameters()
        if "embed_tokens" not in name and "lm_head" not in name
    ]
    vocabulary = [36, 35]  # of 71 ids
    assert on_ranks(2, held) == [math.fsum(sizes) + ids * 2 * 32 * 4 for ids in vocabulary]
