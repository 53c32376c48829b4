"""Rollout weights in 8 bits: near the full ones, smaller, and the same on every layout."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_ranks import on_ranks
from parallel_training import shape_of
from rollouts import make_groups, run, sampling
from rollouts_on_ranks import ARGUMENTS, engine_on_rank, grid_of, run_on_ranks

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_plan.memory import plan_memory
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.fused.fused_weights import WeightFactory
from rljob_runtime.models.loading import load_policy
from rljob_runtime.models.weights import weights_checksum
from rljob_runtime.rollout.rollout_torch import TorchRollout, make_torch_rollout
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.weights.held_policy import FullPolicy
from rljob_runtime.weights.weight_sync import WeightSync

SaveReference = Callable[..., tuple[Any, Path]]
INT8 = ARGUMENTS | {"quantization": "int8"}


def test_a_matrix_is_rounded_to_the_nearest_of_127_steps_of_each_row() -> None:
    matrix = torch.tensor([[2.54, -1.27, 0.011, 0.0], [0.0, 0.0, 0.0, 0.0]])
    held = WeightFactory(dtype=torch.float32, device="cpu", int8=True).matrix(2, 4)

    held.copy_(matrix)

    assert held.values.tolist() == [[127, -64, 1, 0], [0, 0, 0, 0]]  # type: ignore[union-attr]
    expected = torch.tensor([[2.54, -1.28, 0.02, 0.0], [0.0] * 4])
    torch.testing.assert_close(held.wide(torch.float32), expected)  # type: ignore[union-attr]


@pytest.mark.parametrize("family", ["llama-biased", "qwen3-moe", "deepseek-v3"])
def test_logprobs_are_near_the_full_precision_policys(
    family: str, save_reference: SaveReference
) -> None:
    path, groups = save_reference(family)[1], make_groups()

    found = run(TorchRollout(path, **INT8), groups)

    samples = [(g, found[uid]) for g, group in enumerate(groups) for uid in group.uids]
    batch = SampleBatch(
        prompts=[torch.tensor(group.token_ids) for group in groups],
        group_of_B=torch.tensor([g for g, _ in samples]),
        responses=[torch.tensor(sample.token_ids) for _, sample in samples],
    )
    policy = load_policy(path, dtype=torch.float32)
    full_T = policy.logprobs(batch, temperature=1.0).logprobs_T.detach()
    drawn_T = torch.tensor([value for _, sample in samples for value in sample.logprobs])
    assert 1e-4 < float((drawn_T - full_T).abs().mean()) < 0.1


@pytest.mark.parametrize(
    ("family", "degrees"),
    [
        ("qwen3", {"tensor": 2}),
        ("qwen3-moe", {"tensor": 2, "expert": 2}),
        ("deepseek-v3", {"tensor": 2, "pipeline": 2}),
    ],
)
def test_ranks_round_alike_so_that_greedy_tokens_are_one_ranks(
    family: str, degrees: dict[str, int], save_reference: SaveReference
) -> None:
    path, groups = save_reference(family)[1], make_groups(samples=1)
    greedy = sampling(greedy=True)
    expected = run(TorchRollout(path, **INT8), groups, greedy)

    [[found]] = run_on_ranks(path, grid_of(**degrees), groups, [greedy], quantization="int8")

    for uid, sample in found.items():
        assert sample.token_ids == expected[uid].token_ids
        assert sample.logprobs == pytest.approx(expected[uid].logprobs, abs=1e-5)


def test_new_weights_are_rounded_anew(save_reference: SaveReference) -> None:
    path, other = save_reference("qwen3")[1], save_reference("qwen3", seed=5)[1]
    groups, fresh = make_groups(samples=1), load_policy(other, dtype=torch.float32)
    engine = TorchRollout(path, **INT8)

    engine.load_weights(fresh.named_hf_parameters(), version=4)

    assert run(engine, groups) == {
        uid: replace(sample, version=4)
        for uid, sample in run(TorchRollout(other, **INT8), groups).items()
    }


def test_the_checksum_is_of_the_weights_that_were_taken(save_reference: SaveReference) -> None:
    path, other = save_reference("deepseek-v3")[1], save_reference("deepseek-v3", seed=5)[1]
    loaded, fresh = (load_policy(p, dtype=torch.float32) for p in (path, other))
    engine = TorchRollout(path, **INT8)
    before = engine.checksum()

    engine.load_weights(fresh.named_hf_parameters(), version=1)

    assert before == weights_checksum(loaded.named_hf_parameters())
    assert engine.checksum() == weights_checksum(fresh.named_hf_parameters())


def test_the_weight_sync_takes_an_engine_of_8_bits(save_reference: SaveReference) -> None:
    path, other = save_reference("qwen3")[1], save_reference("qwen3", seed=5)[1]
    engine, policy = TorchRollout(path, **INT8), load_policy(other, dtype=torch.float32)
    sync = WeightSync(
        policy=FullPolicy(model=policy),
        rollout=engine,
        dtype=torch.float32,
        synced=torch.float32,
        vocab_size=71,
        max_length=64,
    )

    report = sync.run(version=2)

    assert report.checksum == weights_checksum(policy.named_hf_parameters())
    assert engine.version == 2


@pytest.mark.parametrize("family", ["qwen3-tied", "qwen3-moe", "deepseek-v3"])
@pytest.mark.parametrize("tensor", [1, 2])
def test_the_plan_knows_the_bytes_of_each_device(
    family: str, tensor: int, save_reference: SaveReference
) -> None:
    path = save_reference(family)[1]
    planned = plan_memory(int8_job(tensor), shape_of(path)).rollout_weights

    def held(rank: int) -> int:
        ledger = MemoryLedger(device=f"cpu:{rank}")
        engine_on_rank(path, grid_of(tensor=tensor), ledger=ledger, quantization="int8")
        return ledger.report().kind_peak_bytes[MemoryKind.ROLLOUT_WEIGHTS]

    assert on_ranks(tensor, held)[0] == planned


def int8_job(tensor: int) -> ResolvedSpec:
    spec = {
        "steps": 1,
        "model": {"builtin": "tiny"},
        "data": {"reasoningGym": {"dataset": "spell_backward"}},
        "rewards": [{"name": "exact", "type": "dataset"}],
        "batch": {
            "globalBatchSize": 4,
            "samplesPerPrompt": 2,
            "maxPromptLength": 32,
            "maxResponseLength": 32,
        },
        "accelerator": {"devicesPerNode": tensor},
        "rollout": {"parallelism": {"tensor": tensor}, "quantization": "int8"},
    }
    manifest = {
        "apiVersion": "rljob.io/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": "small"},
        "spec": spec,
    }
    return resolve(read_job(manifest)).spec


def test_models_that_run_through_transformers_are_refused(save_reference: SaveReference) -> None:
    path = save_reference("llama-rope-longrope")[1]

    with pytest.raises(ConfigError, match=r"use spec\.rollout\.quantization: none"):
        make_torch_rollout(path, **INT8)
