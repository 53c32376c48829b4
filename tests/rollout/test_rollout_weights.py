"""Weights of the rollout engines: what is loaded, refused, compared, and counted."""

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from reference_models import FAMILIES, make_reference
from rollouts import make_groups, run, sampling

from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.errors import DeviceMemoryError, WeightsError
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.weight_stream import AnnouncedWeights
from rljob_runtime.models.weights import weights_checksum
from rljob_runtime.rollout.rollout_engine import RolloutEngine
from rljob_runtime.rollout.rollout_torch import TorchRollout, make_torch_rollout

SaveReference = Callable[..., tuple[Any, Path]]


def make(path: Path, **changes: Any) -> RolloutEngine:
    arguments: dict[str, Any] = {"dtype": torch.float32, "max_sequences": 8, "max_length": 64}
    return make_torch_rollout(path, **(arguments | changes))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_checksum_equals_the_policys_for_every_family(
    family: str, save_reference: SaveReference
) -> None:
    path = save_reference(family)[1]

    engine = make(path)

    policy = load_policy(path, dtype=torch.float32)
    assert engine.checksum() == weights_checksum(policy.named_hf_parameters())


def test_a_bfloat16_engine_holds_what_chooses_experts_in_float32(
    save_reference: SaveReference,
) -> None:
    path = save_reference("deepseek-v3")[1]
    engine, policy = make(path, dtype=torch.bfloat16), load_policy(path, dtype=torch.float32)

    engine.load_weights(policy.named_hf_parameters(), version=1)

    assert engine.checksum() == weights_checksum(policy.named_hf_parameters(), dtype=torch.bfloat16)
    assert len(run(engine, make_groups())) == 20


def test_a_perturbation_changes_the_checksum_until_it_is_synced(
    save_reference: SaveReference,
) -> None:
    path = save_reference("qwen3")[1]
    engine, policy = make(path), load_policy(path, dtype=torch.float32)
    weights = dict(policy.named_hf_parameters())

    with torch.no_grad():
        weights["model.layers.1.self_attn.k_proj.weight"][3, 4] += 1e-5

    assert engine.checksum() != weights_checksum(weights.items())
    engine.load_weights(weights.items(), version=1)
    assert engine.checksum() == weights_checksum(weights.items())


def test_new_weights_change_the_output_and_the_version(save_reference: SaveReference) -> None:
    path = save_reference("llama-tied")[1]
    other = make_reference("llama-tied", seed=5)
    engine, groups = make(path), make_groups()
    before = run(engine, groups)

    engine.load_weights(other.named_parameters(), version=7)

    after = run(engine, groups)
    assert {sample.version for sample in before.values()} == {0}
    assert {sample.version for sample in after.values()} == {7}
    assert any(after[uid].token_ids != before[uid].token_ids for uid in before)


def test_restored_weights_restore_the_output_bitwise(save_reference: SaveReference) -> None:
    reference, path = save_reference("qwen3")
    engine, groups = make(path), make_groups()
    before = [sample.token_ids for sample in run(engine, groups).values()]

    engine.load_weights(make_reference("qwen3", seed=5).named_parameters(), version=1)
    engine.load_weights(reference.named_parameters(), version=2)

    assert [sample.token_ids for sample in run(engine, groups).values()] == before


def test_weights_are_copied(save_reference: SaveReference) -> None:
    reference, path = save_reference("llama")
    engine = make(path)
    engine.load_weights(reference.named_parameters(), version=1)
    before = engine.checksum()

    with torch.no_grad():
        reference.model.embed_tokens.weight.zero_()

    assert engine.checksum() == before


def test_a_bfloat16_engine_is_compared_in_its_own_type(save_reference: SaveReference) -> None:
    reference, path = save_reference("llama")
    engine = make(path, dtype=torch.bfloat16)

    engine.load_weights(reference.named_parameters(), version=1)

    assert engine.checksum() == weights_checksum(reference.named_parameters(), dtype=torch.bfloat16)
    assert engine.checksum() != weights_checksum(reference.named_parameters())


def test_samples_keep_the_version_that_they_began_with(save_reference: SaveReference) -> None:
    reference, path = save_reference("llama")
    engine, groups = make(path, max_sequences=8), make_groups()
    versions = set()

    for number, chunk in enumerate(engine.generate(groups, sampling())):
        versions |= {sample.version for sample in chunk}
        engine.load_weights(reference.named_parameters(), version=number + 1)

    assert 0 in versions and len(versions) > 1


@pytest.mark.parametrize("longrope", [False, True])
def test_wrong_weights_are_named_and_change_nothing(
    longrope: bool, save_reference: SaveReference
) -> None:
    reference, path = save_reference("llama-rope-longrope" if longrope else "llama")
    engine = make(path)
    before = engine.checksum()
    weights = dict(reference.named_parameters())
    del weights["model.norm.weight"]
    weights["lm_head.weight"] = torch.zeros(3)
    weights["more"] = torch.zeros(1)

    with pytest.raises(WeightsError) as caught:
        engine.load_weights(weights.items(), version=1)

    for part in ("model.norm.weight is missing", "lm_head.weight is [3]", "more is not expected"):
        assert part in str(caught.value)
    assert engine.checksum() == before
    assert engine.version == 0


def test_the_ledger_counts_weights_and_cache_while_they_live(save_reference: SaveReference) -> None:
    path = save_reference("qwen3")[1]
    ledger = MemoryLedger(device="cpu:0")
    policy = load_policy(path, dtype=torch.float32)
    num_bytes = sum(t.numel() * 4 for _, t in policy.named_hf_parameters())
    cache_bytes = (
        3 * 2 * 8 * 2 * 64 * 16 * 4
    )  # layers, k and v, rows, heads, length, width, float32

    engine = TorchRollout(path, dtype=torch.float32, max_sequences=8, max_length=64, ledger=ledger)

    assert ledger.kind_bytes(MemoryKind.ROLLOUT_WEIGHTS) == num_bytes
    assert ledger.kind_bytes(MemoryKind.KV_CACHE) == cache_bytes
    engine.sleep()
    assert ledger.kind_bytes(MemoryKind.KV_CACHE) == 0
    engine.wake()
    assert ledger.kind_bytes(MemoryKind.KV_CACHE) == cache_bytes


def test_a_cache_that_does_not_fit_is_refused(save_reference: SaveReference) -> None:
    path = save_reference("qwen3")[1]
    ledger = MemoryLedger(device="cpu:0", limit_bytes=400_000)

    with pytest.raises(DeviceMemoryError, match="kv cache"):
        make(path, ledger=ledger)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_no_more_than_two_of_the_arriving_tensors_are_held_at_a_time(
    quantization: str, save_reference: SaveReference
) -> None:
    reference, path = save_reference("qwen3")
    engine = make(path, quantization=quantization)
    most, alive = 0, weakref.WeakSet[torch.Tensor]()

    def one_at_a_time() -> Iterator[tuple[str, torch.Tensor]]:
        nonlocal most
        for name, weight in reference.named_parameters():
            fresh = weight.detach().clone()
            alive.add(fresh)
            most = max(most, len(alive))
            yield name, fresh
            del fresh

    engine.load_weights(one_at_a_time(), version=1)

    assert most <= 2
    assert engine.checksum() == weights_checksum(reference.named_parameters())


def test_announced_weights_are_refused_before_the_first_of_them_comes(
    save_reference: SaveReference,
) -> None:
    reference, path = save_reference("llama")
    engine, before = make(path), make(path).checksum()
    outlines = {name: weight.to("meta") for name, weight in reference.named_parameters()}
    outlines["lm_head.weight"] = torch.empty(3, device="meta")
    came = []
    weights = ((came.append(name), (name, weight))[1] for name, weight in outlines.items())

    with pytest.raises(WeightsError, match=r"lm_head.weight is \[3\], not \[71, 32\]"):
        engine.load_weights(AnnouncedWeights(outlines=outlines, weights=weights), version=1)

    assert (came, engine.checksum(), engine.version) == ([], before, 0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"lm_head.weight": torch.zeros(3)}, r"lm_head.weight is \[3\], not \[71, 32\]"),
        ({"more": torch.zeros(1)}, "more is not expected"),
        ({"model.norm.weight": None}, r"\(1 tensors\): model.norm.weight is missing"),
    ],
)
def test_weights_that_come_unannounced_are_checked_one_by_one(
    change: dict[str, Any], told: str, save_reference: SaveReference
) -> None:
    reference, path = save_reference("llama")
    engine = make(path)
    weights = dict(reference.named_parameters()) | change

    with pytest.raises(WeightsError, match=told):
        engine.load_weights(((n, w) for n, w in weights.items() if w is not None), version=1)

    assert engine.version == 0
