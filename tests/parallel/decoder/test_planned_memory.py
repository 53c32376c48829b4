"""The most that a rank holds in an optimizer step, tensor by tensor, beside what the plan says."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
import torch.distributed.fsdp  # once, not in every fork
import yaml
from even_routes import spread_evenly
from forked_ranks import on_ranks
from parallel_training import SETTINGS
from transformers.models.deepseek_v3 import DeepseekV3Config
from transformers.models.qwen3 import Qwen3Config
from transformers.models.qwen3_moe import Qwen3MoeConfig

from benchmarks.support.held_memory import HeldMemory
from rljob_api.model.architecture import Shape, read_shape
from rljob_api.spec.rljob import RLJob
from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_plan.memory import plan_memory
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.parallel.decoder.parameters import on_meta, purposes
from rljob_runtime.parallel.decoder.pipeline_passes import run_micro_batches
from rljob_runtime.parallel.decoder.policy import parallelize, share_weights, shares_weights
from rljob_runtime.parallel.fully_sharded import local_rows
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import RankGrid
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.optimizers import StepOptimizer, WholeOptimizer
from rljob_runtime.update.parallel_optimizer import ParallelOptimizer

EXAMPLES = Path(__file__).parents[3] / "examples"
PROMPTS, SAMPLES, PROMPT, RESPONSE, PASSES = 2, 4, 128, 65, 2
SIZES: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4,
    "num_attention_heads": 8, "max_position_embeddings": 512,
}  # fmt: skip
QWEN = SIZES | {"num_key_value_heads": 4, "head_dim": 8}
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LATENT = {
    "num_key_value_heads": 8, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8, "v_head_dim": 8, "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "first_k_dense_replace": 1,
    "n_group": 4, "topk_group": 2,
}  # fmt: skip
MODELS = {
    "qwen3": Qwen3Config(**QWEN, architectures=["Qwen3ForCausalLM"]).to_dict(),
    "qwen3-moe": Qwen3MoeConfig(**QWEN, **MOE, architectures=["Qwen3MoeForCausalLM"]).to_dict(),
    "deepseek-v3": DeepseekV3Config(
        **SIZES, **LATENT, architectures=["DeepseekV3ForCausalLM"]
    ).to_dict(),
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
RING = {"context_algorithm": "ring"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "one rank": ("qwen3", {}),
    "one rank, experts, latent attention": ("deepseek-v3", {}),
    "data": ("qwen3", {"data": 2}),
    "data, ZeRO 1": ("qwen3", {"data": 2, "zero": 1}),
    "data, ZeRO 2": ("qwen3", {"data": 2, "zero": 2}),
    "data, ZeRO 3": ("qwen3", {"data": 2, "zero": 3}),
    "tensor": ("qwen3", {"tensor": 2}),
    "context": ("qwen3", {"context": 2}),
    "ring": ("qwen3", {"context": 2} | RING),
    "pipeline": ("qwen3", {"pipeline": 2}),
    "virtual stages": ("qwen3", {"pipeline": 2, "virtual_pipeline": 2}),
    "experts": ("qwen3-moe", {"data": 2, "expert": 2}),
    "tensor, experts by features": ("qwen3-moe", {"tensor": 2}),
    "tensor, context, experts": (
        "deepseek-v3", {"tensor": 2, "context": 2, "expert": 2, "zero": 1},
    ),
    "pipeline, tensor, data": (
        "qwen3", {"pipeline": 2, "tensor": 2, "data": 2, "zero": 1},
    ),
}  # fmt: skip


def spec_of(degrees: UpdateDegrees, ranks: int, **update: Any) -> ResolvedSpec:
    job = yaml.safe_load((EXAMPLES / "quickstart.yaml").read_text())
    job["spec"]["update"] = {"parallelism": degrees.model_dump(by_alias=True), **update}
    job["spec"]["accelerator"] = {"type": "emulated", "devicesPerNode": ranks}
    job["spec"]["batch"] = {
        "globalBatchSize": PASSES * PROMPTS * (degrees.data or 1),
        "samplesPerPrompt": SAMPLES,
        "maxPromptLength": PROMPT,
        "maxResponseLength": RESPONSE,
        "microBatchSize": PROMPTS,
    }
    return resolve(RLJob.model_validate(job)).spec


def make_batch() -> SampleBatch:
    return SampleBatch(
        prompts=[torch.arange(PROMPT)] * PROMPTS,
        group_of_B=torch.arange(PROMPTS).repeat_interleave(SAMPLES),
        responses=[torch.arange(RESPONSE)] * PROMPTS * SAMPLES,
    )


def most_held(
    config: dict[str, Any],
    shape: Shape,
    grid: RankGrid,
    *,
    recompute: str = "none",
    dtype: str = "float32",
    moments: Literal["float32", "float8"] = "float32",
) -> int:
    """Bytes of a rank at the fullest moment of an optimizer step."""
    kind, settings = DTYPES[dtype], SETTINGS.model_copy(update={"moments_dtype": moments})
    groups, ledger = ProcessGroups(grid, timeout_seconds=60), MemoryLedger(device="unlimited")
    architecture = read_architecture(config)
    shared = grid.degrees.shared
    held_as = torch.float32 if shares_weights(groups) else kind
    decoder = on_meta(architecture, held_as) if shared else Decoder(architecture, dtype=kind)
    if shared:
        parallelize(decoder, shape, groups)
        share_weights(decoder, groups, dtype=kind)
    if recompute == "full":
        decoder.recompute_layers()
    spread_evenly(decoder)
    parameters = dict(decoder.trained_parameters())
    with torch.no_grad():
        for tensor in (*parameters.values(), *decoder.buffers()):
            local_rows(tensor).normal_(0.0, 0.05)
    everyone = dist.group.WORLD if grid.size > 1 else None
    optimizer: StepOptimizer = WholeOptimizer(
        parameters, settings, group=everyone, ledger=ledger
    ) if not shared else ParallelOptimizer(
        parameters, purposes(decoder, shape), settings,
        groups=groups, everyone=everyone, ledger=ledger,
    )  # fmt: skip
    there = [*map(local_rows, parameters.values()), *optimizer.state_dict().values()]
    with HeldMemory(there) as held:
        begun = optimizer.begin()
        batches = [make_batch()] * PASSES
        if shared:
            run_micro_batches(
                decoder, groups, batches, temperature=0.7,
                loss=lambda _, said: said.logprobs_T.sum(), after_backward=begun.end_pass,
            )  # fmt: skip
        else:
            for batch in batches:
                said = decoder.logprobs(batch, temperature=0.7, with_entropy=True)
                said.logprobs_T.sum().backward()
                del said
        begun.sum_over_ranks()
        begun.clip(1.0)
        optimizer.step(1e-3)
    return held.peak


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("case", CASES)
def test_a_rank_holds_at_most_what_is_planned(case: str, recompute: str) -> None:
    found, planned = held_and_planned(case, recompute=recompute)

    assert found == pytest.approx(planned, rel=0.05)


@pytest.mark.parametrize("moments", ["float32", "float8"])
@pytest.mark.parametrize("case", ["one rank", "data, ZeRO 1", "data, ZeRO 3", "tensor"])
def test_a_rank_holds_what_is_planned_in_bfloat16_and_with_moments_in_8_bits(
    case: str, moments: str
) -> None:
    found, planned = held_and_planned(case, dtype="bfloat16", moments=moments)

    assert found == pytest.approx(planned, rel=0.05)


def held_and_planned(case: str, **how: Any) -> tuple[int, int]:
    """Bytes of the fullest rank, without those of its rollout."""
    family, given = CASES[case]
    config, degrees = MODELS[family], UpdateDegrees.model_validate({"data": 1, **given})
    shape = read_shape(config, name="config.json")
    assert shape is not None
    grid = RankGrid(degrees, kv_heads=shape.kv_heads)
    found = on_ranks(grid.size, lambda _: most_held(config, shape, grid, **how), seconds=120)
    if moments := how.pop("moments", ""):
        how["optimizer"] = {"momentsDtype": moments}
    memory = plan_memory(spec_of(degrees, grid.size, **how), shape)
    update = {phase.name: phase for phase in memory.phases}["update"]
    return max(found), update.device - update.parts.get("rollout weights", 0)
