"""Optimizer steps of whole update engines on small random models, for tests that compare engines."""

from pathlib import Path
from typing import Any

import torch
from model_configs import SMALL

from rljob_api.check.load import read_job
from rljob_api.topology.resolved import ResolvedSpec, resolve
from rljob_runtime.devices.memory_ledger import MemoryLedger
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.weights import save_hf
from rljob_runtime.update.update_engine import UpdateEngine, UpdateSetup
from rljob_runtime.update.update_ranks import UpdateRanks
from rljob_runtime.weights.held_policy import LocalPolicy, load_local_policy

ALIKE: dict[str, Any] = {"rtol": 1e-4, "atol": 2e-6}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
EXPERTS: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 24,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "mlp_only_layers": [1],
}
LATENT: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_routed_experts": 8,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "first_k_dense_replace": 1,
}
MODELS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "qwen2": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 24,
        "tie_word_embeddings": True,
    },
    "experts": EXPERTS,
    "balanced": EXPERTS | {"output_router_logits": True, "router_aux_loss_coef": 0.1},
    "latent": LATENT,
    "plain queries": LATENT | {"q_lora_rank": None, "rope_interleave": False},
    "deep": LLAMA | {"num_hidden_layers": 4},
}


SIZES = {
    "globalBatchSize": 4, "samplesPerPrompt": 2, "maxPromptLength": 16, "maxResponseLength": 8,
}  # fmt: skip


def spec_of(*, batch: dict[str, int] = SIZES, devices: int = 1, **update: Any) -> ResolvedSpec:
    """A job with one more field of `update` for each argument that is no other's."""
    job = read_job({
        "apiVersion": "rljob.io/v1alpha1", "kind": "RLJob", "metadata": {"name": "a"},
        "spec": {
            "steps": 4,
            "model": {"path": "model"},
            "data": {"jsonl": {"path": "a"}},
            "rewards": [{"name": "r", "type": "exact"}],
            "batch": batch,
            "accelerator": {"type": "emulated", "devicesPerNode": devices},
            "update": {
                "engine": "megatron",
                # epsilon: else the sign alone of gradients of rounding errors would move weights
                "optimizer": {
                    "learningRate": 1e-2, "weightDecay": 0.1, "gradientClip": 0.05, "epsilon": 1e-3,
                },
                **update,
            },
        },
    })  # fmt: skip
    return resolve(job).spec


def save_model(folder: Path, model: dict[str, Any]) -> Path:
    """A random model whose norms and biases are not their starting values."""
    config = SMALL | model
    decoder = Decoder(read_architecture(config))
    decoder.initialize(seed=5, std=0.1)
    random = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for _, tensor in decoder.named_hf_parameters():
            if tensor.ndim == 1:
                tensor += 0.1 * torch.randn(tensor.shape, generator=random)
    save_hf(decoder.named_hf_parameters(), folder=folder, config=config)
    return folder


ALONE = UpdateRanks()


def setup_of(
    folder: Path,
    spec: ResolvedSpec | None = None,
    ranks: UpdateRanks = ALONE,
    held: LocalPolicy | None = None,
) -> UpdateSetup:
    held = held or load_local_policy(folder, ranks, dtype=torch.float32)
    return UpdateSetup(
        spec=spec or spec_of(),
        model=folder,
        policy=held.model,
        purposes=held.purposes,
        total_steps=4,
        ranks=ranks,
        ledger=MemoryLedger(device="test"),
    )


def step(engine: UpdateEngine[Any], batches: list[Any], loss: Any) -> dict[str, float]:
    begun = engine.begin(loss)
    for batch in batches:
        begun.add(batch)
    return engine.finish(begun, groups_with_signal=len(batches))


def assert_alike(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            torch.as_tensor(found[name]),
            torch.as_tensor(value),
            msg=f"{name}: {found[name]}, {value}",
            **ALIKE,
        )
