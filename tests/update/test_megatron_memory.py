"""The most that a rank of the engine `megatron` holds in a step, tensor by tensor, beside what is planned."""

from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from engine_steps import save_model, spec_of
from forked_ranks import on_ranks
from model_configs import SMALL
from parallel_training import grid_of
from shared_steps import ranks_of
from torch import Tensor, nn

from benchmarks.support.held_memory import HeldMemory
from rljob_api.model.architecture import read_shape
from rljob_api.topology.resolved import ResolvedSpec
from rljob_plan.memory import plan_memory
from rljob_runtime.algorithms.algorithm import LossOutput, Totals
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.parallel.ranks import RankGrid
from rljob_runtime.rollout.rollout_table import DTYPES
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_engine import UpdateSetup
from rljob_runtime.update.update_table import make_update
from rljob_runtime.weights.held_policy import load_local_policy

PROMPTS, SAMPLES, PROMPT, RESPONSE = 2, 4, 64, 33
EXPERTS: dict[str, Any] = SMALL | {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}
DEGREES = {"data": 2, "expert": 2, "zero": 1}


BATCH = {
    "globalBatchSize": 2 * PROMPTS, "samplesPerPrompt": SAMPLES, "maxPromptLength": PROMPT,
    "maxResponseLength": RESPONSE, "microBatchSize": PROMPTS,
}  # fmt: skip


def make_batch() -> SampleBatch:
    return SampleBatch(
        prompts=[torch.arange(PROMPT)] * PROMPTS,
        group_of_B=torch.arange(PROMPTS).repeat_interleave(SAMPLES),
        responses=[torch.arange(RESPONSE)] * PROMPTS * SAMPLES,
    )


def loss(logprobs_T: Tensor, batch: SampleBatch, totals: Totals) -> LossOutput:
    return LossOutput(loss=logprobs_T.sum(), mean_over="tokens", token_sums={}, maxima={})


def spread_evenly(router: nn.Module, given: tuple[Tensor], found: tuple[Tensor, ...]) -> Any:
    """Every expert gets as many tokens as every other, as plans take it."""
    weights_SE, chosen_SE = found[:2]
    number, count = weights_SE.shape
    chosen_SK = chosen_SE.nonzero()[:, 1].view(number, -1)
    experts_SK = (torch.arange(chosen_SK.numel()) % count).view_as(chosen_SK)
    even_SE = torch.zeros_like(chosen_SE).scatter(1, experts_SK, True)
    own_SK = weights_SE.gather(1, chosen_SK)
    return torch.zeros_like(weights_SE).scatter(1, experts_SK, own_SK), even_SE


def step_of(folder: Path, spec: ResolvedSpec, grid: RankGrid) -> tuple[int, dict[str, int]]:
    """Bytes of a rank at the fullest moment of a step after the first, and peaks by kind in its ledger: the
    median step's, as in one of ten or so a thread of gloo holds a buffer for longer."""
    ranks, ledger = ranks_of(grid), MemoryLedger(device="test")
    held = load_local_policy(folder, ranks, dtype=DTYPES[spec.update.dtype])
    with HeldMemory() as memory:
        engine = make_update(UpdateSetup(
            spec=spec, model=folder, policy=held.model, purposes=held.purposes, total_steps=6,
            ranks=ranks, ledger=ledger,
        ))  # fmt: skip
        for module in engine._model.modules():  # type: ignore[attr-defined]
            if hasattr(module, "routing"):
                module.register_forward_hook(spread_evenly, prepend=True)
        peaks = []
        for _ in range(6):
            memory.peak = 0
            begun = engine.begin(loss)
            begun.add(make_batch())
            engine.finish(begun, groups_with_signal=1)
            peaks.append(memory.peak)
    return int(median(peaks[1:])), ledger.report().kind_peak_bytes


def test_a_rank_holds_what_is_planned(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    shape, folder = (
        read_shape(EXPERTS, name="config.json"),
        save_model(tmp_path / "model", EXPERTS),
    )
    spec = spec_of(batch=BATCH, devices=2, parallelism=DEGREES, dtype="bfloat16", recompute="full")
    assert shape is not None
    grid = grid_of(folder, **DEGREES)

    found = on_ranks(2, lambda _: step_of(folder, spec, grid))

    phases = {phase.name: phase.parts for phase in plan_memory(spec, shape).phases}
    of_rollout = ("rollout weights", "KV cache")
    planned = {name: size for name, size in phases["update"].items() if name not in of_rollout}
    peak, kinds = max(found, key=lambda one: one[0])
    assert peak == pytest.approx(sum(planned.values()), rel=0.1)
    for kind in ("update weights", "gradients", "optimizer"):
        assert kinds[kind] == pytest.approx(planned[kind], rel=0.02), kind
