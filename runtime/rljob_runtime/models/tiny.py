"""The built-in model `tiny`: 0.9M parameters over bytes, warmed up on the job's own task.

Made by a seeded supervised warm-up (`warmup`) that is counted in steps, so that a busy machine makes
the same model as an idle one; cached by everything that decides it. Imports no torch, since most runs
find the model in the cache. Called by `builtin`.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rljob_api.spec.rljob import RLJob
from rljob_api.spec.workload import Warmup
from rljob_runtime.models.one_maker import one_maker
from rljob_runtime.task.tokenizer import (
    BYTE_VOCABULARY,
    EOS_ID,
    save_byte_tokenizer,
)

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


def make_tiny(
    job: RLJob,
    *,
    base_dir: Path,
    cache_dir: Path,
    progress: Callable[[str], None],
    recipe: Recipe | None = None,
) -> Path:
    """Directory of the model for this job's task; one process makes it. Raises ConfigError if it learns
    nothing at all."""
    recipe = recipe or Recipe()
    folder = cache_dir / "tiny" / _key(job, recipe)
    with one_maker(folder.with_suffix(".lock"), progress):
        if not (folder / "config.json").is_file():
            from rljob_runtime.models.warmup import warm_up
            from rljob_runtime.models.weights import save_hf

            decoder = warm_up(job, base_dir=base_dir, progress=progress, recipe=recipe)
            save_hf(decoder.named_hf_parameters(), folder=folder, config=CONFIG)
            save_byte_tokenizer(folder)
    return folder


def num_held_out(job: RLJob) -> int:
    """The run's own held-out prompts where it evaluates, so that the warm-up never sees them."""
    return job.spec.evaluation.prompts if job.spec.evaluation else HELD_OUT


def _key(job: RLJob, recipe: Recipe) -> str:
    """Digest of everything that decides the model."""
    spec = job.spec
    decided = {
        "config": CONFIG,
        "recipe": asdict(recipe),
        "seed": spec.seed,
        "data": spec.data.model_dump(mode="json"),
        "warmup": (spec.model.warmup or Warmup()).model_dump(mode="json"),
        "max_prompt_length": spec.batch.max_prompt_length,
        "held_out": num_held_out(job),
    }
    if spec.evaluation and spec.evaluation.suites:
        decided["suites"] = [suite.model_dump(mode="json") for suite in spec.evaluation.suites]
    if spec.rollout.tools:
        decided["demonstrations"] = True
    text = json.dumps(decided, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()
