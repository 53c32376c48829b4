"""The built-in model `tiny`: 0.9M parameters over bytes, warmed up on the job's own task.

Made by a seeded supervised warm-up (`warmup`) that is counted in steps, so that a busy machine makes
the same model as an idle one; cached by everything that decides it. Imports no torch, since most runs
find the model in the cache. Called by `builtin`.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rljob_api.spec.rljob import RLJob
from rljob_api.spec.workload import Warmup
from rljob_runtime.models.one_maker import one_maker
from rljob_runtime.models.tiny_recipe import CONFIG, Recipe, num_held_out
from rljob_runtime.task.tokenizer import save_byte_tokenizer


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
