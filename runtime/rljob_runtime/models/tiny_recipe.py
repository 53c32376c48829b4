"""What the built-in model `tiny` is, and how its warm-up trains. Read by `tiny` and `warmup`."""

from dataclasses import dataclass
from typing import Any

from rljob_api.spec.rljob import RLJob
from rljob_runtime.task.tokenizer import BYTE_VOCABULARY, EOS_ID

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": BYTE_VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "attention_bias": False,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "eos_token_id": EOS_ID,
}
HELD_OUT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the warm-up trains. version: part of the cache's key; raised when the code changes."""

    batch_size: int = 128
    learning_rate: float = 3e-3
    rise_steps: int = 20
    check_every: int = 10
    version: int = 1


def num_held_out(job: RLJob) -> int:
    """The run's own held-out prompts where it evaluates, so that the warm-up never sees them."""
    return job.spec.evaluation.prompts if job.spec.evaluation else HELD_OUT
