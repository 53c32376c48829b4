"""One rank's training step in layouts of 16 and of 384 ranks, where torch's fake group stands for the others.

What is computed means nothing where no rank gets another's numbers. What counts is what a rank holds and what
it sends: the contract's slices, and the bytes of the plan.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest
import torch
import torch.distributed as dist
from even_routes import spread_evenly
from parallel_training import SETTINGS
from sent_bytes import SentBytes
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.qwen3 import Qwen3Config

from rljob_api.model.architecture import Shape, read_shape
from rljob_api.topology.devices import UpdateDegrees
from rljob_plan.traffic import UpdateWork
from rljob_plan.update_traffic import stage_traffic
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.models.families import read_architecture
from rljob_runtime.parallel.decoder.parameters import local_slices, on_meta, purposes
from rljob_runtime.parallel.decoder.pipeline_passes import run_micro_batches
from rljob_runtime.parallel.decoder.policy import parallelize, share_weights
from rljob_runtime.parallel.fully_sharded import local_rows
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose, RankGrid
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.parallel_optimizer import ParallelOptimizer

PASSES, PROMPTS, SAMPLES, PROMPT, RESPONSE = 2, 2, 4, 128, 97
SIZES: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 512,
}  # fmt: skip
R1: dict[str, Any] = {  # DeepSeek-R1's 61 layers on 6 stages are as uneven
    **SIZES, "num_hidden_layers": 13, "num_attention_heads": 32, "num_key_value_heads": 32,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4,
    "v_head_dim": 4, "n_routed_experts": 32, "n_shared_experts": 1, "num_experts_per_tok": 8,
    "moe_intermediate_size": 16, "first_k_dense_replace": 3, "n_group": 8, "topk_group": 4,
}  # fmt: skip
QWEN: dict[str, Any] = {
    **SIZES, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 8,
}  # fmt: skip
MODELS = {
    "deepseek-v3": DeepseekV3Config(**R1, architectures=["DeepseekV3ForCausalLM"]).to_dict(),
    "qwen3": Qwen3Config(**QWEN, architectures=["Qwen3ForCausalLM"]).to_dict(),
}
RING = {"context_algorithm": "ring"}
CASES: dict[str, tuple[str, dict[str, Any], list[int]]] = {
    "16: tensor, Ulysses, experts over both, ZeRO 1": (
        "deepseek-v3",
        {"data": 4, "tensor": 2, "context": 2, "expert": 4, "zero": 1},
        [0, 7, 15],
    ),
    "16: virtual stages, ring, ZeRO 2": (
        "deepseek-v3",
        {"data": 2, "tensor": 2, "pipeline": 2, "virtual_pipeline": 2, "context": 2, "expert": 4,
         "zero": 2} | RING,
        [0, 5, 15],
    ),
    "16: tensor, ZeRO 3": ("qwen3", {"data": 8, "tensor": 2, "zero": 3}, [0, 9]),
    "384: the paper's DeepSeek-R1": (
        "deepseek-v3",
        {"data": 2, "tensor": 4, "pipeline": 6, "context": 8, "expert": 16, "zero": 1},
        [0, 70, 201, 383],
    ),
    "384: three stages, ring, an expert a rank, ZeRO 2": (
        "deepseek-v3",
        {"data": 4, "tensor": 4, "pipeline": 3, "context": 8, "expert": 32, "zero": 2} | RING,
        [1, 200, 383],
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStep:
    """What a rank held and sent in an optimizer step. stages: bytes to the other ranks of its pipeline."""

    shapes: dict[str, tuple[int, ...]]
    rows: int
    sent: float
    stages: float


def make_batch() -> SampleBatch:
    """Samples whose tokens all degrees divide."""
    return SampleBatch(
        prompts=[torch.arange(PROMPT)] * PROMPTS,
        group_of_B=torch.arange(PROMPTS).repeat_interleave(SAMPLES),
        responses=[torch.arange(RESPONSE)] * PROMPTS * SAMPLES,
    )


WORK = UpdateWork(
    tokens=PROMPTS * (PROMPT + SAMPLES * (RESPONSE - 1)),
    positions=PROMPTS * (1 + SAMPLES * (RESPONSE - 1)),
    targets=PROMPTS * SAMPLES * RESPONSE,
    passes=PASSES,
)


@contextmanager
def one_of(grid: RankGrid, rank: int) -> Iterator[ProcessGroups]:
    """The groups of a rank that is alone."""
    dist.init_process_group("fake", rank=rank, world_size=grid.size, store=FakeStore())
    try:
        yield ProcessGroups(grid, timeout_seconds=60)
    finally:
        dist.destroy_process_group()


def take_step(config: dict[str, Any], shape: Shape, groups: ProcessGroups) -> PipelineStep:
    decoder = on_meta(read_architecture(config), torch.float32)
    parallelize(decoder, shape, groups)
    shapes = {name: tuple(weight.shape) for name, weight in decoder.named_hf_parameters()}
    share_weights(decoder, groups, dtype=torch.float32)
    spread_evenly(decoder)
    parameters = dict(decoder.trained_parameters())
    with torch.no_grad():
        for tensor in (*parameters.values(), *decoder.buffers()):
            local_rows(tensor).fill_(0.01)
    optimizer = ParallelOptimizer(
        parameters,
        purposes(decoder, shape),
        SETTINGS,
        groups=groups,
        everyone=dist.group.WORLD,
        ledger=MemoryLedger(device="unlimited"),
    )
    with SentBytes() as sent:
        begun = optimizer.begin()
        run_micro_batches(
            decoder,
            groups,
            [make_batch()] * PASSES,
            temperature=1.0,
            loss=lambda _, said: said.logprobs_T.sum(),
            after_backward=begun.end_pass,
        )
        begun.sum_over_ranks()
        begun.clip(1.0)
        optimizer.step(1e-3)
    stages = groups.grid.group(Purpose.PIPELINE, groups.rank)
    return PipelineStep(
        shapes=shapes,
        rows=sum(local_rows(parameter).numel() for parameter in parameters.values()),
        sent=sent.total,
        stages=sent.by_ranks.get(tuple(stages), 0.0),
    )


@pytest.mark.parametrize("case", CASES)
def test_a_rank_holds_the_contracts_slices_and_sends_what_is_planned(case: str) -> None:
    family, given, ranks = CASES[case]
    config, degrees = MODELS[family], UpdateDegrees.model_validate(given)
    shape = read_shape(config, name="config.json")
    assert shape is not None
    grid = RankGrid(degrees, kv_heads=shape.kv_heads)
    assert grid.size == int(case.partition(":")[0])

    for rank in ranks:
        with one_of(grid, rank) as groups:
            found = take_step(config, shape, groups)

        held = local_slices(shape, grid, rank)
        assert found.shapes == {name: piece.shape for name, piece in held.items()}
        trained = sum(prod(s) for name, s in found.shapes.items() if "correction" not in name)
        copies = grid.degrees.data if degrees.zero == 3 else 1
        assert found.rows == trained // copies
        stage = grid.coordinates(rank).pipeline
        planned = stage_traffic(shape, degrees, WORK, stage, dtype="float32")
        assert found.sent == pytest.approx(planned.total, rel=0.02), (rank, planned)
        assert found.stages == pytest.approx(planned.pipeline, rel=0.05), (rank, planned)
