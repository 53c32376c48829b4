"""Configuration of the built-in models `tiny` and `tiny-vl`, and of their warm-up training.

`tiny` and `warmup` read it.
"""

from dataclasses import dataclass
from typing import Any

from rljob_api.spec.rljob import RLJob
from rljob_api.spec.workload import Data
from rljob_runtime.task.tokenizer import BOS_ID, BYTE_VOCABULARY, EOS_ID, PICTURE_VOCABULARY

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
VISION_CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "text_config": {
        "model_type": "qwen2_5_vl_text",
        "vocab_size": PICTURE_VOCABULARY,
        "hidden_size": 96,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [4, 4, 4],
        },
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    },
    "vision_config": {
        "model_type": "qwen2_5_vl",
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_heads": 4,
        "in_channels": 3,
        "out_hidden_size": 96,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "window_size": 112,
        "fullatt_block_indexes": [0, 1],
        "hidden_act": "silu",
    },
    "tie_word_embeddings": True,
    "eos_token_id": EOS_ID,
    "vision_start_token_id": BYTE_VOCABULARY,
    "image_token_id": BYTE_VOCABULARY + 1,
    "vision_end_token_id": BYTE_VOCABULARY + 2,
    "video_token_id": BYTE_VOCABULARY + 3,
}
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "size": {"shortest_edge": 28 * 28, "longest_edge": 224 * 224},
    "image_mean": [1.0, 1.0, 1.0],
    "image_std": [0.5, 0.5, 0.5],
}
HELD_OUT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of the warm-up. version: part of the cache's key; increased when the code changes."""

    batch_size: int = 128
    learning_rate: float = 3e-3
    rise_steps: int = 20
    check_every: int = 10
    version: int = 1


VISION_RECIPE = Recipe(batch_size=64, learning_rate=2e-3)
VISION_STD = 0.08
"""Standard deviation of the initial weights of `tiny-vl`: with 0.02 it takes three times as many steps to use
pictures."""


def num_held_out(job: RLJob) -> int:
    """Return the number of the run's held-out prompts if it evaluates, so that the warm-up never trains on
    them."""
    return job.spec.evaluation.prompts if job.spec.evaluation else HELD_OUT


def shown_data(data: Data) -> Data:
    """Return the data that a warm-up learns from: pictures that a job leaves blank are drawn for it."""
    if data.drawn is None or not data.drawn.blank:
        return data
    return data.model_copy(update={"drawn": data.drawn.model_copy(update={"blank": False})})
