"""The built-in model `tiny`: 0.9M parameters over bytes, warmed up on the job's own task.

Made by a seeded supervised warm-up that is counted in steps, so that a busy machine makes the same
model as an idle one; cached by everything that decides it. Called by `builtin`.
"""

import fcntl
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from rljob_api.rljob import RLJob
from rljob_api.workload import Warmup
from rljob_runtime.data.source import Prompt, PromptSource
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.architecture import read_architecture
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.tokenizer import (
    BYTE_VOCABULARY,
    EOS_ID,
    ByteTokenizer,
    save_byte_tokenizer,
)
from rljob_runtime.models.weights import save_hf
from rljob_runtime.sample import SampleBatch
from rljob_runtime.seeds import derive_seed

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
LEAST_ACCURACY = 0.02


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
    """Directory of the model for this job's task. Raises ConfigError if it learns nothing at all."""
    recipe = recipe or Recipe()
    folder = cache_dir / "tiny" / _key(job, recipe)
    with _locked(folder.with_suffix(".lock")):
        if not (folder / "config.json").is_file():
            decoder = _warm_up(job, base_dir=base_dir, progress=progress, recipe=recipe)
            save_hf(decoder.named_hf_parameters(), folder=folder, config=CONFIG)
            save_byte_tokenizer(folder)
    return folder


def _warm_up(
    job: RLJob, *, base_dir: Path, progress: Callable[[str], None], recipe: Recipe
) -> Decoder:
    """Supervised training until sampled accuracy reaches the target or the steps run out."""
    settings = job.spec.model.warmup or Warmup()
    source = PromptSource(
        job.spec.data,
        batch=job.spec.batch,
        tokenizer=ByteTokenizer(),
        seed=job.spec.seed,
        base_dir=base_dir,
        held_out=_num_held_out(job),
    )
    decoder = Decoder(read_architecture(CONFIG))
    decoder.initialize(derive_seed(job.spec.seed, "tiny"))
    optimizer = torch.optim.AdamW(
        decoder.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.1
    )
    examined = _examples(source.heldout())
    accuracy = 0.0
    for step in range(1, settings.max_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, step / recipe.rise_steps)
        _train(decoder, optimizer, _examples(source.draw("warmup", step, recipe.batch_size)))
        if step % recipe.check_every == 0 or step == settings.max_steps:
            accuracy = _accuracy(decoder, examined)
            progress(f"warming up the tiny model: step {step}, sampled accuracy {accuracy:.2f}")
            if accuracy >= settings.target_accuracy:
                return decoder
    if accuracy < LEAST_ACCURACY:
        raise ConfigError(
            f"the tiny model has sampled accuracy {accuracy:.3f} after {settings.max_steps} steps of "
            "warm-up, too little for any reward to show (spec.model.warmup); raise maxSteps, or take "
            "an easier task with short prompts and answers"
        )
    progress(
        f"the warm-up ended at its last step with sampled accuracy {accuracy:.2f} "
        f"(target {settings.target_accuracy:.2f}, spec.model.warmup.targetAccuracy)"
    )
    return decoder


def _num_held_out(job: RLJob) -> int:
    """The run's own held-out prompts where it evaluates, so that the warm-up never sees them."""
    return job.spec.evaluation.prompts if job.spec.evaluation else HELD_OUT


def _examples(prompts: Sequence[Prompt]) -> SampleBatch:
    """Each prompt with its answer and the end token as the response."""
    tokenizer = ByteTokenizer()
    return SampleBatch(
        prompts=[torch.tensor(prompt.token_ids) for prompt in prompts],
        group_of_B=torch.arange(len(prompts)),
        responses=[
            torch.tensor([*tokenizer.continuation(prompt.answer), EOS_ID]) for prompt in prompts
        ],
    )


def _train(decoder: Decoder, optimizer: torch.optim.Optimizer, examples: SampleBatch) -> None:
    loss = -decoder.logprobs(examples, temperature=1.0).logprobs_T.mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
    optimizer.step()


def _accuracy(decoder: Decoder, examples: SampleBatch) -> float:
    """Expected share of samples at temperature 1 that are the answer: the mean of its probability."""
    with torch.no_grad():
        logprobs_T = decoder.logprobs(examples, temperature=1.0).logprobs_T
    total_B = torch.zeros(examples.num_samples).index_add(0, examples.sample_of_T(), logprobs_T)
    return float(total_B.exp().mean())


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
        "held_out": _num_held_out(job),
    }
    text = json.dumps(decided, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """One maker at a time; the others wait and find the model made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
